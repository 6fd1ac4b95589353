"""Turns exceptions into gRPC statuses with google.rpc details, and reads such details."""

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from signalbox_contract.errors import Code, InvalidArgument, Retryable, RpcError

MAX_MESSAGE_BYTES = 1024
"""Bytes of a status's message. It travels as metadata, of which a gRPC client accepts 8 KiB, and
escaping makes three bytes of one.

A longer status reaches the client as RESOURCE_EXHAUSTED, without its message.
"""


DETAILS = "grpc-status-details-bin"
"""Key of the metadata in which a service's status travels; gRPC's own failures have none."""


class MalformedRequest(RpcError):
    """The received bytes are not a message of the method's type."""

    code = Code.INVALID_ARGUMENT

    def __init__(self, num_bytes: int) -> None:
        self.field = "request"
        self.description = f"these {num_bytes} bytes are no valid message of this method's type"
        super().__init__(f"{self.field}: {self.description}")


def to_status(error: RpcError) -> grpc.Status:
    """Returns the status with its details, as `ServicerContext.abort_with_status` expects it."""
    packed: grpc.Status = rpc_status.to_status(status_of(error))
    return packed


def status_of(error: RpcError) -> status_pb2.Status:
    """Returns the message of a status with its details."""
    status = status_pb2.Status(code=error.code, message=bounded(error.message))
    if (detail := _detail(error)) is not None:
        status.details.add().Pack(detail)
    return status


def _detail(error: RpcError) -> Message | None:
    if isinstance(error, InvalidArgument | MalformedRequest):
        return _violation(error.field, error.description)
    if isinstance(error, Retryable) and error.retry_after_s is not None:
        return _retry_info(error.retry_after_s)
    return None


def _violation(field: str, description: str) -> Message:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    request: Message = error_details_pb2.BadRequest(field_violations=[violation])
    return request


def _retry_info(seconds: float) -> Message:
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    info: Message = error_details_pb2.RetryInfo(retry_delay=delay)
    return info


def bounded(message: str) -> str:
    """Returns the message cut to a length that fits a status; clients may have sent parts of it."""
    data = message.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "..."


def words_of(error: grpc.aio.AioRpcError) -> str:
    """Returns what the called service says of a failure, else the name of the code.

    The words of gRPC itself are left out: they have addresses, which clients must not read.
    """
    return (error.details() if is_said(error) else None) or str(error.code().name)


def is_said(error: grpc.aio.AioRpcError) -> bool:
    """Returns whether the called service has failed the call, not gRPC itself."""
    return any(key == DETAILS for key, _ in error.trailing_metadata() or ())


def retry_after_s(error: grpc.aio.AioRpcError) -> float | None:
    """Returns the seconds after which a failed call may be repeated; None if the server gave
    none."""
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS and isinstance(value, bytes):
            return _find_retry_info(value)
    return None


def _find_retry_info(packed_status: bytes) -> float | None:
    info = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(packed_status).details:
        if detail.Unpack(info):
            return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None

"""Plain exceptions that become gRPC status codes with google.rpc details.

Core code raises these and knows nothing of gRPC. `ErrorInterceptor` (`error_interceptor.py`) turns
them into statuses at the edge.
"""

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

MAX_VALUE_CHARS = 80
MAX_MESSAGE_BYTES = 1024
"""A status travels as metadata, of which a gRPC client takes 8 KiB; escaped, a byte takes three.

One that is longer fails with RESOURCE_EXHAUSTED instead of what it says.
"""


class RpcError(Exception):
    """A failure that the caller is told about, with its code, message and details."""

    code: grpc.StatusCode = grpc.StatusCode.UNKNOWN

    def __init__(self, message: str, *details: Message) -> None:
        super().__init__(message)
        self.message = message
        self.details = details

    def to_status(self) -> grpc.Status:
        """Returns the status with its details, as `ServicerContext.abort_with_status` takes it."""
        status = status_pb2.Status(code=self.code.value[0], message=_bounded(self.message))
        for detail in self.details:
            status.details.add().Pack(detail)
        packed: grpc.Status = rpc_status.to_status(status)
        return packed


class InvalidArgument(RpcError):
    """A field's value is not allowed, whatever the state of the server."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, field: str, value: object, allowed: str) -> None:
        self.field = field
        self.value = value
        self.description = f"{_shorten(value)} is not allowed; allowed: {allowed}"
        super().__init__(f"{field}: {self.description}", _violation(field, self.description))


class ContextOverflow(InvalidArgument):
    """More tokens than the model's window holds. Clients look for these words, and shorten."""

    def __init__(self, field: str, value: object, allowed: str, *, window: int) -> None:
        maximum = f"This model's maximum context length is {window} tokens"
        super().__init__(field, value, f"{allowed}. {maximum}")


class TextTooLong(InvalidArgument):
    """More bytes of text than are tokenised."""


class MalformedRequest(RpcError):
    """What was sent is no message of the method's type."""

    code = grpc.StatusCode.INVALID_ARGUMENT

    def __init__(self, num_bytes: int) -> None:
        description = f"these {num_bytes} bytes are no valid message of this method's type"
        super().__init__(f"request: {description}", _violation("request", description))


class _Retryable(RpcError):
    """A failure that may pass; says when another attempt may succeed, if that is known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message, *_retry_info(retry_after_s))


class ResourceExhausted(_Retryable):
    """There is no room, for now or (with no `retry_after_s`) for good."""

    code = grpc.StatusCode.RESOURCE_EXHAUSTED


class Unavailable(_Retryable):
    """Nobody can serve this now."""

    code = grpc.StatusCode.UNAVAILABLE


class NotFound(RpcError):
    code = grpc.StatusCode.NOT_FOUND


class AlreadyExists(RpcError):
    code = grpc.StatusCode.ALREADY_EXISTS


class FailedPrecondition(RpcError):
    code = grpc.StatusCode.FAILED_PRECONDITION


class Aborted(RpcError):
    code = grpc.StatusCode.ABORTED


class Unimplemented(RpcError):
    code = grpc.StatusCode.UNIMPLEMENTED


class DeadlineExceeded(RpcError):
    code = grpc.StatusCode.DEADLINE_EXCEEDED


class Cancelled(RpcError):
    code = grpc.StatusCode.CANCELLED


class Unauthenticated(RpcError):
    code = grpc.StatusCode.UNAUTHENTICATED


class PermissionDenied(RpcError):
    code = grpc.StatusCode.PERMISSION_DENIED


class Internal(RpcError):
    code = grpc.StatusCode.INTERNAL


_WITH_MESSAGE_ONLY: tuple[type[RpcError], ...] = (
    NotFound,
    AlreadyExists,
    FailedPrecondition,
    Aborted,
    Unimplemented,
    DeadlineExceeded,
    Cancelled,
    Unauthenticated,
    PermissionDenied,
    Internal,
)
_RETRYABLE: tuple[type[_Retryable], ...] = (ResourceExhausted, Unavailable)
_STATUS_CODES = {code.value[0]: code for code in grpc.StatusCode}


def from_code(code: int, message: str, retry_after_s: float | None = None) -> RpcError:
    """Returns the exception for a google.rpc.Code number, such as one that came over a stream."""
    status_code = _STATUS_CODES.get(code, grpc.StatusCode.UNKNOWN)
    for retryable in _RETRYABLE:
        if retryable.code is status_code:
            return retryable(message, retry_after_s)
    for plain in _WITH_MESSAGE_ONLY:
        if plain.code is status_code:
            return plain(message)
    error = RpcError(message)
    error.code = status_code
    return error


def retry_after_s(error: grpc.aio.AioRpcError) -> float | None:
    """Returns when a failed call may be repeated, if the server said so."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin" and isinstance(value, bytes):
            return _find_retry_info(value)
    return None


def _find_retry_info(packed_status: bytes) -> float | None:
    info = error_details_pb2.RetryInfo()
    for detail in status_pb2.Status.FromString(packed_status).details:
        if detail.Unpack(info):
            return float(info.retry_delay.seconds + info.retry_delay.nanos / 1e9)
    return None


def _shorten(value: object) -> str:
    text = repr(value[: MAX_VALUE_CHARS + 1] if isinstance(value, str | bytes) else value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."


def _bounded(message: str) -> str:
    """Returns a message that fits a status, whatever part of it a client has sent."""
    data = message.encode(errors="replace")
    if len(data) <= MAX_MESSAGE_BYTES:
        return message
    return data[: MAX_MESSAGE_BYTES - 3].decode(errors="ignore") + "..."


def _violation(field: str, description: str) -> error_details_pb2.BadRequest:
    violation = error_details_pb2.BadRequest.FieldViolation(field=field, description=description)
    return error_details_pb2.BadRequest(field_violations=[violation])


def _retry_info(seconds: float | None) -> list[error_details_pb2.RetryInfo]:
    if seconds is None:
        return []
    delay = Duration()
    delay.FromNanoseconds(int(seconds * 1e9))
    return [error_details_pb2.RetryInfo(retry_delay=delay)]

"""Plain exceptions that become gRPC status codes with google.rpc details.

Core code raises these and knows nothing of gRPC. `ErrorInterceptor` turns them into statuses at
the edge; any other exception becomes INTERNAL, and its text stays in the log.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from google.rpc import error_details_pb2, status_pb2
from grpc_status import rpc_status

from rpc.handlers import Context, Handler, Requests, wrap

logger = logging.getLogger(__name__)

MAX_VALUE_CHARS = 80
MAX_MESSAGE_BYTES = 1024
"""A status travels as metadata, of which a gRPC client takes 8 KiB; escaped, a byte takes three.

One that is longer fails with RESOURCE_EXHAUSTED instead of what it says.
"""
STATUS_TIMEOUT_S = 2.0
"""That a handler waits for its status to leave."""


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
        self.description = f"{_shorten(value)} is not allowed; allowed: {allowed}"
        super().__init__(f"{field}: {self.description}", _violation(field, self.description))


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


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Stands for a message that could not be parsed, until the handler's wrapper refuses it."""

    num_bytes: int

    def error(self) -> RpcError:
        description = f"these {self.num_bytes} bytes are no valid message of this method's type"
        error = RpcError(f"request: {description}", _violation("request", description))
        error.code = grpc.StatusCode.INVALID_ARGUMENT
        return error


class _CheckedRequests:
    """The requests of a stream; raises on the first that could not be parsed."""

    __slots__ = ("_requests",)

    def __init__(self, requests: AsyncIterator[Any]) -> None:
        self._requests = requests

    def __aiter__(self) -> "_CheckedRequests":
        return self

    async def __anext__(self) -> Any:
        return _checked(await anext(self._requests))


def _checked(request: Any) -> Any:
    if isinstance(request, _Malformed):
        raise request.error()
    return request


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Maps exceptions to statuses; to be the outermost interceptor.

    Wraps the deserialisers too, because gRPC reports malformed bytes as UNKNOWN with the name of
    a Python exception. Cancellation passes through.
    """

    def __init__(self, on_malformed: Callable[[str], None] = lambda _method: None) -> None:
        """`on_malformed` is told the method of each call whose one request is no message."""
        self._on_malformed = on_malformed

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        method = handler_call_details.method
        try:
            handler = await continuation(handler_call_details)
        except Exception as error:
            return _refusing(method, error)
        if handler is None:
            return None

        async def around(call: Awaitable[Any], context: Context) -> Any:
            try:
                return await call
            except Exception as error:
                await _abort(method, error, context)

        def check(requests: Requests) -> Requests:
            if isinstance(requests, _Malformed):
                self._on_malformed(method)
            return _check(requests)

        return wrap(handler, around, deserialize=_deserializer(handler), check=check)


def _check(requests: Requests) -> Requests:
    return _CheckedRequests(requests) if hasattr(requests, "__aiter__") else _checked(requests)


def _deserializer(handler: Handler) -> Callable[[bytes], Any] | None:
    parse = handler.request_deserializer
    if parse is None:
        return None

    def parse_or_mark(data: bytes) -> Any:
        try:
            return parse(data)
        except Exception:  # protobuf, upb and UTF-8 errors share no narrower base
            return _Malformed(len(data))

    return parse_or_mark


def _refusing(method: str, error: Exception) -> Handler:
    """Returns a handler of any kind of call that answers with `error` before it reads anything."""

    async def refuse(_requests: Requests, context: Context) -> None:
        await _abort(method, error, context)

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _abort(method: str, error: Exception, context: Context) -> None:
    if isinstance(error, grpc.aio.BaseError):  # the handler itself has aborted the call
        raise error
    if not isinstance(error, RpcError):
        logger.error("%s failed", method, exc_info=error)
        error = Internal("internal error; the server's log says more")
    if context.done():
        return
    with contextlib.suppress(
        TimeoutError
    ):  # it is queued; a client that does not read gets it last
        async with asyncio.timeout(STATUS_TIMEOUT_S):
            await context.abort_with_status(error.to_status())

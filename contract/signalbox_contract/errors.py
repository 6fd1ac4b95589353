"""Plain exceptions with a code, a message and details. Nothing here knows gRPC.

`signalbox_rpc.interceptors.status` turns an exception into a gRPC status at the edge of a service.
"""

from enum import IntEnum

MAX_VALUE_CHARS = 80
MAX_MESSAGE_CHARS = 4096
"""Characters of an error's message; a peer may have sent it, or what is repeated in it."""


class Code(IntEnum):
    """The numbers of google.rpc.Code, which gRPC statuses have too."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16


class RpcError(Exception):
    """A failure that the caller is told about, with its code and message."""

    code: Code = Code.UNKNOWN

    def __init__(self, message: str) -> None:
        self.message = cut(message)
        super().__init__(self.message)


class InvalidArgument(RpcError):
    """A field's value is not allowed, whatever the state of the server.

    The message has the reason before the value, which a client may have made long.

    Args:
        value: what was given; None if nothing was.
        allowed: the values that are.
        reason: why this one is not, in place of `allowed`.
    """

    code = Code.INVALID_ARGUMENT

    def __init__(self, field: str, value: object, allowed: str = "", *, reason: str = "") -> None:
        self.field = field
        self.value = value
        given = "" if value is None else f"; given: {_shorten(value)}"
        self.description = f"{reason or f'allowed: {allowed}'}{given}"
        super().__init__(f"{field}: {self.description}")


class Retryable(RpcError):
    """A failure that may pass; says when another attempt may succeed, if that is known."""

    def __init__(self, message: str, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class ResourceExhausted(Retryable):
    """There is no room, for now or (with no `retry_after_s`) for good."""

    code = Code.RESOURCE_EXHAUSTED


class Unavailable(Retryable):
    """No server can take the request now."""

    code = Code.UNAVAILABLE


class NotFound(RpcError):
    code = Code.NOT_FOUND


class AlreadyExists(RpcError):
    code = Code.ALREADY_EXISTS


class FailedPrecondition(RpcError):
    code = Code.FAILED_PRECONDITION


class Aborted(RpcError):
    code = Code.ABORTED


class Unimplemented(RpcError):
    code = Code.UNIMPLEMENTED


class DeadlineExceeded(RpcError):
    code = Code.DEADLINE_EXCEEDED


class Cancelled(RpcError):
    code = Code.CANCELLED


class Unauthenticated(RpcError):
    code = Code.UNAUTHENTICATED


class PermissionDenied(RpcError):
    code = Code.PERMISSION_DENIED


class Internal(RpcError):
    code = Code.INTERNAL


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
_RETRYABLE: tuple[type[Retryable], ...] = (ResourceExhausted, Unavailable)
_CODES = frozenset(Code)


def from_code(code: int, message: str, retry_after_s: float | None = None) -> RpcError:
    """Returns the exception for a google.rpc.Code number, such as one that came over a stream."""
    known = Code(code) if code in _CODES else Code.UNKNOWN
    for retryable in _RETRYABLE:
        if retryable.code is known:
            return retryable(message, retry_after_s)
    for plain in _WITH_MESSAGE_ONLY:
        if plain.code is known:
            return plain(message)
    error = RpcError(message)
    error.code = known
    return error


def cut(message: str) -> str:
    """Returns the message of an error, cut if it is too long to be kept and logged."""
    return message if len(message) <= MAX_MESSAGE_CHARS else f"{message[:MAX_MESSAGE_CHARS]}..."


def _shorten(value: object) -> str:
    if isinstance(value, str | bytes | list | tuple):  # no more of it than is shown
        value = value[: MAX_VALUE_CHARS + 1]
    text = repr(value)
    return text if len(text) <= MAX_VALUE_CHARS else f"{text[:MAX_VALUE_CHARS]}..."

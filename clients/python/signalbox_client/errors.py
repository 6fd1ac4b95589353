"""The exception of a failed call: its status code, and the details of google.rpc."""

import asyncio
import contextlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple

import grpc
from google.rpc import error_details_pb2, status_pb2

_DETAILS = "grpc-status-details-bin"


class FieldViolation(NamedTuple):
    """One invalid field of the request, and its description."""

    field: str
    description: str


class RequestError(Exception):
    """A call that failed. Cancelling one's own stream raises nothing."""

    def __init__(
        self,
        code: grpc.StatusCode,
        message: str,
        *,
        violations: tuple[FieldViolation, ...] = (),
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(f"{code.name}: {message}")
        self.code = code
        self.message = message
        self.violations = violations
        """The invalid fields and their allowed values, with INVALID_ARGUMENT."""
        self.retry_after_s = retry_after_s
        """Seconds until a retry may succeed; None if a retry cannot succeed, or if the server
        does not know."""


def request_error(error: Any) -> RequestError:
    """Returns the exception for an error of grpc or grpc.aio."""
    violations: list[FieldViolation] = []
    retry_after_s = None
    for detail in _details(error.trailing_metadata() or ()):
        bad_request, retry = error_details_pb2.BadRequest(), error_details_pb2.RetryInfo()
        if detail.Unpack(bad_request):
            found = bad_request.field_violations
            violations += [FieldViolation(one.field, one.description) for one in found]
        elif detail.Unpack(retry):
            retry_after_s = retry.retry_delay.ToTimedelta().total_seconds()
    return RequestError(
        error.code(),
        error.details() or "",
        violations=tuple(violations),
        retry_after_s=retry_after_s,
    )


@contextlib.contextmanager
def stream_errors(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Raises RequestError for an error of gRPC, and nothing if the stream was cancelled.

    grpc.aio raises CancelledError for a call that is cancelled, as asyncio does for a task.
    """
    try:
        yield
    except grpc.RpcError as error:
        if not is_cancelled():
            raise request_error(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if not is_cancelled() or (task is not None and task.cancelling()):
            raise


def _details(metadata: Iterable[tuple[str, str | bytes]]) -> Iterable[Any]:
    for key, value in metadata:
        if key == _DETAILS and isinstance(value, bytes):
            yield from status_pb2.Status.FromString(value).details

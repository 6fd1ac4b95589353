"""Why a request ends without a result: a status code in the scheduler's own terms."""

from dataclasses import dataclass
from enum import Enum


class FailureCode(Enum):
    """The google.rpc.Code numbers that the scheduler uses."""

    CANCELLED = 1
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    ALREADY_EXISTS = 6
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """The end of a request that failed."""

    code: FailureCode
    message: str
    retry_after_s: float | None = None
    exceeded_window: int | None = None
    """The effective window, if the prompt is too long for it."""


def worker_failure(message: str, *, is_refusal: bool) -> RequestFailure:
    """Returns what a worker says of a sequence: no token suits the request, or it has failed."""
    code = FailureCode.FAILED_PRECONDITION if is_refusal else FailureCode.INTERNAL
    return RequestFailure(code, message)

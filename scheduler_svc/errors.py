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
    INTERNAL = 13
    UNAVAILABLE = 14


@dataclass(frozen=True, slots=True)
class RequestFailure:
    """The end of a request that failed."""

    code: FailureCode
    message: str
    retry_after_s: float | None = None

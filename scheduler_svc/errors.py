"""Why a request ends without a result: a code, a message, and when to repeat it."""

from contract.errors import Code
from contract.updates import RequestFailure


def worker_failure(message: str, *, is_refusal: bool) -> RequestFailure:
    """Returns what a worker says of a sequence: no token suits the request, or it has failed."""
    code = Code.FAILED_PRECONDITION if is_refusal else Code.INTERNAL
    return RequestFailure(code, message)

"""Failures of one sequence of a step, which leave the rest of the step unharmed."""

from signalbox_contract.errors import Code
from signalbox_contract.updates import RequestFailure

NONE_LEFT = "every token is suppressed"
"""Reason of a failure that the request itself causes."""
STRUCTURED_OUTPUT = "its structured output"
"""Begins the reason why a sequence fails that its constraint ends."""
STATE_LOST = "the step failed, and may have changed its state"
"""Reason why a sequence with recurrent layers has to be computed again, from a snapshot."""


def sequence_failure(reason: str) -> RequestFailure:
    """Returns a refusal if the request is the cause, `ABORTED` if the sequence is to be computed
    again, else an internal error."""
    if reason == STATE_LOST:
        return RequestFailure(Code.ABORTED, reason)
    is_refusal = reason == NONE_LEFT or reason.startswith(STRUCTURED_OUTPUT)
    return RequestFailure(Code.FAILED_PRECONDITION if is_refusal else Code.INTERNAL, reason)

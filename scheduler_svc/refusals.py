"""Why the cluster refuses a request, or ends one that waits: the words and the codes."""

from scheduler_svc.errors import FailureCode, RequestFailure
from scheduler_svc.sequence import SequenceGroup

RETRY_AFTER_S = 1.0


def no_worker_serves() -> RequestFailure:
    return RequestFailure(FailureCode.UNAVAILABLE, "no worker serves", RETRY_AFTER_S)


def too_many_wait(num_waiting: int) -> RequestFailure:
    return RequestFailure(
        FailureCode.RESOURCE_EXHAUSTED, f"{num_waiting} requests are waiting already", RETRY_AFTER_S
    )


def never_fits(group: SequenceGroup) -> RequestFailure:
    if group.num_branches == 1:
        sequences, fit = "1 sequence", "fits"
    else:
        sequences, fit = f"{group.num_branches} sequences", "fit"
    fewer = "n" if group.beam_search is None else "beam_search.width"
    return RequestFailure(
        FailureCode.RESOURCE_EXHAUSTED,
        f"{sequences} of {group.num_prompt_tokens} prompt tokens and up to"
        f" {group.max_tokens} more {fit} no worker's KV cache; lower max_tokens or {fewer}",
    )


def breaks_workers(group: SequenceGroup) -> RequestFailure:
    return RequestFailure(
        FailureCode.INTERNAL,
        f"{group.num_lost_workers} workers were lost while they worked on the request",
    )

"""Why the cluster refuses a request, or ends one that waits: the words and the codes."""

from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.config import AdmissionBounds
from scheduler_svc.errors import FailureCode, RequestFailure
from scheduler_svc.sequence import SequenceGroup

RETRY_AFTER_S = 1.0


def no_worker_serves() -> RequestFailure:
    return RequestFailure(FailureCode.UNAVAILABLE, "no worker serves", RETRY_AFTER_S)


def drains() -> RequestFailure:
    return RequestFailure(FailureCode.UNAVAILABLE, "the scheduler is draining", RETRY_AFTER_S)


def no_worker_came(wait_s: float) -> RequestFailure:
    waited = f", and none joined within {wait_s:g} s" if wait_s else ""
    return RequestFailure(FailureCode.UNAVAILABLE, f"no worker serves{waited}", RETRY_AFTER_S)


def model_changed() -> RequestFailure:
    return RequestFailure(
        FailureCode.UNAVAILABLE, "the workers that have joined serve another model", RETRY_AFTER_S
    )


def beyond_bounds(
    group: SequenceGroup, bounds: AdmissionBounds, admission: AdmissionQueue, *, num_live: int
) -> RequestFailure | None:
    """Says which bound a request would break.

    Args:
        num_live: the tenant's requests that live.
    """
    most_live, most_tokens = bounds.max_tenant_requests, bounds.max_queued_tokens
    num_waiting, num_tokens = len(admission), admission.num_prompt_tokens
    if most_live is not None and num_live >= most_live:
        return _for_now(f"{num_live} requests of this tenant are live, as many as may be")
    if num_waiting >= bounds.max_queued_requests:
        return _for_now(f"{num_waiting} requests are waiting already")
    if (
        most_tokens is not None
        and num_waiting
        and num_tokens + group.num_prompt_tokens > most_tokens
    ):
        return _for_now(
            f"{num_tokens} prompt tokens are waiting already; with {group.num_prompt_tokens} more"
            f" they would exceed {most_tokens}"
        )
    return None


def policy_fails() -> RequestFailure:
    return RequestFailure(FailureCode.INTERNAL, "the scheduling policy fails on this request")


def _for_now(message: str) -> RequestFailure:
    return RequestFailure(FailureCode.RESOURCE_EXHAUSTED, message, RETRY_AFTER_S)


def exceeds_window(group: SequenceGroup, window: int) -> RequestFailure:
    return RequestFailure(
        FailureCode.INVALID_ARGUMENT,
        f"the prompt has {group.num_prompt_tokens} tokens; the maximum context length is {window}"
        " tokens, as much as the largest worker's KV cache holds",
        exceeded_window=window,
    )


def no_room_left(group: SequenceGroup) -> RequestFailure:
    """Returns the failure of a request that only a lost worker had room for."""
    return RequestFailure(
        FailureCode.UNAVAILABLE,
        f"no worker that is left has room for {group.num_prompt_tokens} prompt tokens and"
        f" {group.max_tokens} more",
        RETRY_AFTER_S,
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

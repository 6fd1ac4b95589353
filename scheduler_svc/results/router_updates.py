"""What a step's outcome means for routers: one message for each router that it concerns."""

from collections.abc import Mapping

from contract.updates import (
    FinishedRequest,
    FinishedSequence,
    PromptRun,
    RequestUpdates,
    Usage,
)
from scheduler_svc.requests.live_requests import LiveRequest, RouterSession
from scheduler_svc.requests.sequence import Sequence
from scheduler_svc.requests.sequence_group import SequenceGroup
from scheduler_svc.results.step_outcome import StepOutcome


def router_updates(
    outcome: StepOutcome, requests: Mapping[SequenceGroup, LiveRequest], *, now: float
) -> dict[RouterSession, RequestUpdates]:
    """Returns what each router is told of an outcome, all of whose requests are live."""
    updates: dict[RouterSession, RequestUpdates] = {}
    for seq, token_id, logprobs in outcome.tokens:
        request = requests[seq.group]
        news = updates.get(request.session)
        if news is None:
            news = updates[request.session] = RequestUpdates()
        news.add_token(
            handle=request.handle, index=seq.branch, token_id=token_id, logprobs=logprobs
        )
    for group, first_position, prompt_logprobs in outcome.prompt_logprobs:
        request = requests[group]
        news = updates.setdefault(request.session, RequestUpdates())
        news.prompt_logprobs.append(PromptRun(request.handle, first_position, prompt_logprobs))
    for seq in outcome.finished:
        request = requests[seq.group]
        news = updates.setdefault(request.session, RequestUpdates())
        news.finished_sequences.append(_finished(seq, request.handle))
    for group in outcome.ended:
        request = requests[group]
        news = updates.setdefault(request.session, RequestUpdates())
        news.finished_requests.append(finished_request(request, now=now))
    return updates


def finished_request(request: LiveRequest, *, now: float) -> FinishedRequest:
    """Returns the last thing that a router is told of a request."""
    group = request.group
    return FinishedRequest(
        handle=request.handle,
        failure=group.failure,
        usage=Usage(group.num_prompt_tokens, group.num_completion_tokens, group.num_cached_tokens),
        timings=group.times.timings(now),
    )


def _finished(seq: Sequence, handle: int) -> FinishedSequence:
    assert seq.finish_reason is not None, "only finished sequences are reported"
    return FinishedSequence(
        handle=handle,
        index=seq.branch,
        reason=seq.finish_reason,
        stop_token_id=seq.stop_token_id,
        error_message=seq.failure.message if seq.failure else "",
        score=seq.score,
    )

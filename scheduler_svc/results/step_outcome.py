"""The outcome of a step for requests, and the messages that tell their routers of it."""

from dataclasses import dataclass, field

from contract.logprobs import TokenLogprobs
from contract.pooling import Vector
from contract.updates import (
    FinishedRequest,
    FinishedSequence,
    PooledOutput,
    PromptRun,
    RequestUpdates,
    Usage,
)
from scheduler_svc.requests.sequence import Sequence
from scheduler_svc.requests.sequence_group import RouterSession, SequenceGroup
from scheduler_svc.requests.suspicion import Suspicion

NewToken = tuple[Sequence, int, TokenLogprobs | None]
"""An accepted token: its sequence, its id, and its log probabilities if they were asked for."""


@dataclass(slots=True)
class StepOutcome:
    """Outcome of one step for requests."""

    tokens: list[NewToken] = field(default_factory=list)
    prompt_logprobs: list[tuple[SequenceGroup, int, list[TokenLogprobs]]] = field(
        default_factory=list
    )
    """Group, position of the first token, and log probabilities from that position on."""
    pooled: list[tuple[SequenceGroup, Vector]] = field(default_factory=list)
    finished: list[Sequence] = field(default_factory=list)
    """Sequences that have just ended; each has its reason."""
    ended: list[SequenceGroup] = field(default_factory=list)
    """Requests whose last sequence has just ended."""
    cleared: list[Suspicion] = field(default_factory=list)
    """Suspicions of requests that are suspects no longer."""


def router_updates(outcome: StepOutcome, *, now: float) -> dict[RouterSession, RequestUpdates]:
    """Returns the message for each router that an outcome concerns."""
    updates: dict[RouterSession, RequestUpdates] = {}
    for seq, token_id, logprobs in outcome.tokens:
        group = seq.group
        news = updates.get(group.reply_to)
        if news is None:
            news = updates[group.reply_to] = RequestUpdates()
        news.add_token(
            handle=group.request.handle, index=seq.branch, token_id=token_id, logprobs=logprobs
        )
    for group, first_position, prompt_logprobs in outcome.prompt_logprobs:
        news = updates.setdefault(group.reply_to, RequestUpdates())
        run = PromptRun(group.request.handle, first_position, prompt_logprobs)
        news.prompt_logprobs.append(run)
    for group, vector in outcome.pooled:
        news = updates.setdefault(group.reply_to, RequestUpdates())
        news.pooled.append(PooledOutput(group.request.handle, vector))
    for seq in outcome.finished:
        news = updates.setdefault(seq.group.reply_to, RequestUpdates())
        news.finished_sequences.append(_finished(seq))
    for group in outcome.ended:
        news = updates.setdefault(group.reply_to, RequestUpdates())
        news.finished_requests.append(finished_request(group, now=now))
    return updates


def finished_request(group: SequenceGroup, *, now: float) -> FinishedRequest:
    """Returns the last update of a request."""
    return FinishedRequest(
        handle=group.request.handle,
        failure=group.failure,
        usage=Usage(group.num_prompt_tokens, group.num_completion_tokens, group.num_cached_tokens),
        timings=group.times.timings(now),
    )


def _finished(seq: Sequence) -> FinishedSequence:
    assert seq.finish_reason is not None, "only finished sequences are reported"
    return FinishedSequence(
        handle=seq.group.request.handle,
        index=seq.branch,
        reason=seq.finish_reason,
        stop_token_id=seq.stop_token_id,
        error_message=seq.failure.message if seq.failure else "",
        score=seq.score,
    )

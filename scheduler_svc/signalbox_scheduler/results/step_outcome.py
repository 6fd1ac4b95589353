"""The outcome of a step for requests, and the messages that tell their routers of it."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import groupby

from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.pooling import Vector
from signalbox_contract.updates import (
    FinishedRequest,
    FinishedSequence,
    PooledOutput,
    PromptRun,
    RequestUpdates,
    Usage,
)
from signalbox_scheduler.requests.sequence_group import RouterSession, Sequence, SequenceGroup
from signalbox_scheduler.requests.suspicion import Suspicion


@dataclass(slots=True)
class StepOutcome:
    """Outcome of one step for requests."""

    seqs: list[Sequence] = field(default_factory=list)
    """Sequence of each accepted token."""
    token_ids: list[int] = field(default_factory=list)
    has_runs: bool = False
    """True if a sequence has several of these tokens in a row."""
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """Log probabilities of the tokens for which they were asked, by index."""
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
    set_back: list[SequenceGroup] = field(default_factory=list)
    """Suspects, in no queue, that have lost their states in a step: to be computed again, from what
    is cached."""

    def add_token(self, seq: Sequence, token_id: int, logprobs: TokenLogprobs | None) -> None:
        """Adds an accepted token, with its log probabilities if they were asked for."""
        if logprobs is not None:
            self.logprobs[len(self.seqs)] = logprobs
        self.seqs.append(seq)
        self.token_ids.append(token_id)


def router_updates(outcome: StepOutcome, *, now: float) -> dict[RouterSession, RequestUpdates]:
    updates = _token_updates(outcome)
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


def _token_updates(outcome: StepOutcome) -> dict[RouterSession, RequestUpdates]:
    """Returns the messages with the tokens alone."""
    updates = {}
    for router, rows in _rows_by_router(outcome.seqs).items():
        seqs, token_ids = outcome.seqs, outcome.token_ids
        if len(rows) < len(seqs):
            seqs, token_ids = [seqs[row] for row in rows], [token_ids[row] for row in rows]
        updates[router] = RequestUpdates(
            handles=[seq.group.request.handle for seq in seqs],
            indices=[seq.branch for seq in seqs],
            token_ids=token_ids,
        )
        if outcome.has_runs:
            _join_runs(updates[router])
        if outcome.logprobs:
            found = enumerate(map(outcome.logprobs.get, rows))
            updates[router].logprobs = [(i, logprobs) for i, logprobs in found if logprobs]
    return updates


def _join_runs(updates: RequestUpdates) -> None:
    """Makes a run of all tokens of a sequence that follow each other."""
    rows = zip(updates.handles, updates.indices, strict=True)
    runs = [(key, len(list(members))) for key, members in groupby(rows)]
    updates.handles = [handle for (handle, _), _ in runs]
    updates.indices = [index for (_, index), _ in runs]
    updates.num_tokens = [length for _, length in runs]


def _rows_by_router(seqs: list[Sequence]) -> Mapping[RouterSession, Collection[int]]:
    routers = [seq.group.reply_to for seq in seqs]
    if routers and routers.count(routers[0]) == len(routers):
        return {routers[0]: range(len(routers))}
    rows: dict[RouterSession, list[int]] = {}
    for row, router in enumerate(routers):
        rows.setdefault(router, []).append(row)
    return rows


def finished_request(group: SequenceGroup, *, now: float) -> FinishedRequest:
    return FinishedRequest(
        handle=group.request.handle,
        failure=group.failure,
        usage=Usage(group.num_prompt_tokens, group.num_completion_tokens, group.num_cached_tokens),
        timings=group.times.timings(now),
        speculation=group.speculation,
        arithmetic=group.arithmetic,
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

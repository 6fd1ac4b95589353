"""A complete answer that waits for its audit: its tokens, their logits, and its origin."""

from collections.abc import Iterator
from collections.abc import Sequence as Values
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from signalbox_contract.updates import FinishReason, RequestUpdates
from signalbox_contract.wording import counted
from signalbox_scheduler.audits.finding import AuditSource, DropReason
from signalbox_scheduler.requests.drawn_logits import DrawnLogits
from signalbox_scheduler.requests.sequence_group import (
    Sequence,
    SequenceGroup,
    SequenceStatus,
    new_group,
)
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent

MAX_TOKENS = 4096
"""Most tokens of an audit; the prompt counts once for each branch."""


class AuditedBranch(NamedTuple):
    """Output of one branch."""

    branch: int
    token_ids: list[int]
    logit_bits: list[int]
    """Bits of the float32 of each token."""


class AnswerOrigin(NamedTuple):
    """Sources that an answer went through."""

    source: AuditSource
    suspect: str
    """Kind of the store, address of the peer or of the worker."""
    history: str
    """Everything it went through, as the end of a sentence that begins with "the answer"."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditRecord:
    """A complete answer."""

    group: SequenceGroup
    branches: tuple[AuditedBranch, ...]
    arithmetic: str
    workers: tuple[str, ...]
    """Addresses of the workers that computed it, in order."""
    origin: AnswerOrigin
    ended_at: float

    @property
    def longest(self) -> int:
        """Tokens of the longest branch, prompt included."""
        output = max(len(branch.token_ids) for branch in self.branches)
        return self.group.num_prompt_tokens + output


def float_bits(values: Values[float]) -> list[int]:
    """Returns the bits of each value as a float32."""
    bits: list[int] = np.array(values, dtype=np.float32).view(np.uint32).tolist()
    return bits


def may_be_audited(group: SequenceGroup) -> bool:
    """Returns whether a request that arrives may be chosen.

    Beam searches, pooled requests and those that prewarm draw no tokens. The logits that a resumed
    request has drawn earlier are unknown.
    """
    request = group.request
    is_drawn = request.beam_search is None and request.pooling is None and not request.prewarm
    fits = group.num_prompt_tokens * request.num_sequences < MAX_TOKENS
    return is_drawn and fits and not request.attempt


def record_of(group: SequenceGroup, logits: DrawnLogits, now: float) -> AuditRecord | DropReason:
    """Returns the record of a request that has ended, or the reason why it is not audited."""
    if group.failure is not None or any(
        seq.finish_reason in (None, FinishReason.ERROR) for seq in group.sequences
    ):
        return DropReason.FAILED_REQUEST
    outputs = {seq.branch: seq.output_token_ids for seq in group.sequences if seq.output_token_ids}
    num_tokens = sum(group.num_prompt_tokens + len(tokens) for tokens in outputs.values())
    if num_tokens > MAX_TOKENS:
        return DropReason.LONG
    if not group.arithmetic:
        return DropReason.ARITHMETIC
    branches = []
    for branch, token_ids in outputs.items():
        known = logits.by_branch.get(branch, [])[: len(token_ids)]
        if len(known) < len(token_ids) or np.isnan(known).any():
            return DropReason.INCOMPLETE
        branches.append(AuditedBranch(branch, token_ids, float_bits(known)))
    if not branches:
        return DropReason.INCOMPLETE
    workers = tuple(logits.workers)
    return AuditRecord(
        group=group,
        branches=tuple(branches),
        arithmetic=group.arithmetic,
        workers=workers,
        origin=origin_of(group, workers),
        ended_at=now,
    )


def origin_of(group: SequenceGroup, workers: Values[str]) -> AnswerOrigin:
    """Returns what a request that has ended went through, and the least trusted part of it."""
    events = group.timeline.events
    fetched = [one for one in events if one.kind is EventKind.FETCHED and one.num_blocks]
    stores = [one.store for one in fetched if one.store]
    peers = [one.source for one in fetched if one.source]
    migrated = [one.worker for one in events if one.kind is EventKind.MIGRATED]
    swapped = [one.worker for one in events if one.kind is EventKind.RESUMED and one.is_swap]
    if group.num_cpu_cached_tokens:
        swapped.append(workers[-1])
    found = {
        AuditSource.STORE: stores,
        AuditSource.PEER: peers,
        AuditSource.SWAP: swapped,
        AuditSource.MIGRATION: migrated,
        AuditSource.WORKER: workers,
    }
    source = next(source for source in AuditSource if found[source])
    history = ", ".join(_history(group, fetched, workers))
    return AnswerOrigin(source, found[source][-1], history)


def _history(
    group: SequenceGroup, fetched: Values[TimelineEvent], workers: Values[str]
) -> Iterator[str]:
    yield f"was computed by {' and '.join(workers)}"
    for one in fetched:
        where = f"the {one.store} store" if one.store else one.source
        yield f"got {counted(one.num_blocks, 'block')} from {where}"
    if group.num_cached_tokens:
        yield f"found {counted(group.num_cached_tokens, 'token')} of its prompt cached"
    if group.num_cpu_cached_tokens:
        yield f"found {counted(group.num_cpu_cached_tokens, 'token')} in swap space"
    kinds = [(event.kind, event.is_swap) for event in group.timeline.events]
    for what, kind, is_swap in (
        ("was swapped out and in", EventKind.RESUMED, True),
        ("was recomputed after a preemption", EventKind.PREEMPTED, False),
        ("migrated", EventKind.MIGRATED, False),
        ("lost its worker", EventKind.MOVED, False),
    ):
        if number := kinds.count((kind, is_swap)):
            yield what if number == 1 else f"{what} {number} times"


class NoRouter:
    """Session of a sequence that no router waits for."""

    def send(self, updates: RequestUpdates) -> None: ...


_NO_ROUTER = NoRouter()


def make_sequence(
    record: AuditRecord, branch: AuditedBranch, *, uses_drafts: bool, now: float
) -> Sequence:
    """Returns a sequence that computes a branch from its prompt alone, with all parameters of its
    request."""
    request = record.group.request
    group = new_group(
        replace(
            request,
            handle=0,
            max_tokens=len(branch.token_ids),
            num_sequences=1,
            timeout_ns=None,
            traceparent="",
            tracestate="",
            num_delivered_prompt_logprobs=len(request.prompt_token_ids),  # so none are computed
            snapshot_positions=(),
            no_speculation=not uses_drafts,
            prediction=tuple(branch.token_ids),
        ),
        reply_to=_NO_ROUTER,
        now=now,
    )
    group.is_private, group.logits = True, DrawnLogits()
    group.begin()
    (seq,) = group.sequences
    seq.branch = branch.branch
    group.set_status(SequenceStatus.RUNNING)
    return seq

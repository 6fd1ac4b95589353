"""Explains why a request took as long as it did, from its timeline and its sums.

Of a request that has ended, its timeline and a few numbers are kept for a while, not its tokens.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass, replace
from enum import Enum, auto

from signalbox_contract.prefix_comparison import PrefixComparison
from signalbox_contract.updates import RequestFailure
from signalbox_rpc.metrics.sample import Sample
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus
from signalbox_scheduler.requests.stage_use import StageUse
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent
from signalbox_scheduler.requests.wait_accounting import Wait


class RequestState(Enum):
    """State of a request, named as in explain.proto."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    ENDED = auto()
    LOADING = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Explanation of one request. Times are seconds of the scheduler's clock."""

    request_id: str
    request_number: int
    """See `SequenceGroup.number`."""
    state: RequestState
    worker: str
    arrival: float
    as_of: float
    num_prompt_tokens: int
    num_cached_tokens: int
    num_output_tokens: int
    max_tokens: int
    num_sequences: int
    num_preemptions: int
    queued_s: float
    prefill_s: float
    decode_s: float
    preempted_s: float
    """Part of the three above."""
    events: tuple[TimelineEvent, ...]
    num_dropped_events: int
    block_tables: tuple[list[int], ...] = ()
    """Blocks of its sequences that go on; none of a request that waits or has ended."""
    waits: tuple[Wait, ...] = ()
    """Reasons for which a waiting or loading request has waited since it was queued."""
    num_ahead: int = 0
    failure: RequestFailure | None = None
    samples: tuple[Sample, ...]
    """Counts of this request alone."""
    stages: StageUse
    """Use of its worker's stages since the worker took it; empty if that has one alone."""
    prefix: PrefixComparison | None = None
    """Comparison with an earlier prompt of its client; None if there was none."""


class History:
    """The explanations of the last requests that ended.

    Args:
        size: how many are kept.
    """

    def __init__(self, size: int) -> None:
        self._size = size
        self._ended: OrderedDict[str, Explanation] = OrderedDict()

    def keep(self, group: SequenceGroup, now: float) -> None:
        """Takes in a request that has just ended."""
        if not self._size:
            return
        group.timeline.add(EventKind.ENDED, now, detail=_how_it_ended(group))
        self._ended[group.request_id] = _explanation(group, RequestState.ENDED, now)
        self._ended.move_to_end(group.request_id)
        if len(self._ended) > self._size:
            self._ended.popitem(last=False)

    def add_audit(self, group: SequenceGroup, event: TimelineEvent) -> None:
        """Adds the end of an audit to what is known of its request."""
        if (known := self.find_number(group.number)) is not None:
            self._ended[known.request_id] = replace(known, events=(*known.events, event))

    def find(self, request_id: str) -> Explanation | None:
        return self._ended.get(request_id)

    def find_number(self, request_number: int) -> Explanation | None:
        ended = self._ended.values()
        return next((one for one in ended if one.request_number == request_number), None)

    @property
    def request_ids(self) -> Collection[str]:
        return self._ended.keys()

    def __len__(self) -> int:
        return len(self._ended)


def explain(group: SequenceGroup, admission: AdmissionQueue, *, now: float) -> Explanation:
    """Explains a request that lives."""
    statuses = {seq.status for seq in group.unfinished}
    waits = group.timeline.waits(admission.waits, now)
    if SequenceStatus.WAITING in statuses:
        num_ahead = admission.num_ahead(group)
        return _explanation(group, RequestState.WAITING, now, waits=waits, num_ahead=num_ahead)
    state = RequestState.RUNNING
    if SequenceStatus.SWAPPED in statuses:
        state = RequestState.SWAPPED
    elif SequenceStatus.LOADING in statuses:
        state = RequestState.LOADING
    tables = tuple(seq.block_table for seq in group.unfinished)
    return _explanation(group, state, now, block_tables=tables, waits=waits)


def _explanation(
    group: SequenceGroup,
    state: RequestState,
    now: float,
    *,
    block_tables: tuple[list[int], ...] = (),
    waits: tuple[Wait, ...] = (),
    num_ahead: int = 0,
) -> Explanation:
    queued_s, prefill_s, decode_s = group.times.phases(now)
    return Explanation(
        request_id=group.request_id,
        request_number=group.number,
        state=state,
        worker=group.timeline.worker,
        arrival=group.times.arrival,
        as_of=now,
        num_prompt_tokens=group.num_prompt_tokens,
        num_cached_tokens=group.num_cached_tokens,
        num_output_tokens=group.num_completion_tokens,
        max_tokens=group.max_tokens,
        num_sequences=group.request.num_sequences,
        num_preemptions=group.num_preemptions,
        queued_s=queued_s,
        prefill_s=prefill_s,
        decode_s=decode_s,
        preempted_s=group.times.total_preempted(now),
        events=tuple(group.timeline.events),
        num_dropped_events=group.timeline.num_dropped,
        block_tables=block_tables,
        waits=waits,
        num_ahead=num_ahead,
        failure=group.failure,
        samples=tuple(group.samples()),
        stages=group.timeline.stage_use(),
        prefix=group.request.prefix,
    )


def _how_it_ended(group: SequenceGroup) -> str:
    if group.failure is not None:
        return f"{group.failure.code.name}: {group.failure.message}"
    reasons = dict.fromkeys(seq.finish_reason for seq in group.sequences)
    return ", ".join(reason.name for reason in reasons if reason is not None)

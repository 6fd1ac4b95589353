"""A request's time from its arrival on, as spans in lanes: where its time went."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from signalbox_scheduler.insight.history_words import details_of, name_of
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent

_TRANSFERS = {
    EventKind.FETCHED: "fetched",
    EventKind.STORED: "stored",
    EventKind.MIGRATED: "moved",
    EventKind.MOVED: "moved",
}
_NEXT_LANE = {
    EventKind.QUEUED: "queue",
    EventKind.SCHEDULED: "prefill",
    EventKind.PREFILL: "prefill",
    EventKind.FIRST_TOKEN: "decode",
    EventKind.POOLED: "decode",
    EventKind.PREEMPTED: "preempted",
    EventKind.MOVED: "queue",
}


class HistorySpan(NamedTuple):
    """Time in a lane, by the scheduler's clock, and the event with which it began."""

    lane: str
    begin: float
    end: float
    details: str


class _State(NamedTuple):
    """State that lasts until the next one begins."""

    lane: str
    begin: float
    details: str
    is_chunk: bool = False


def spans_of(events: Sequence[TimelineEvent], *, as_of: float) -> list[HistorySpan]:
    """Returns spans; those of queue, prefill, decode and preempted follow each other.

    Of the last chunk that is computed again no end is known: it is a moment, and tokens follow it.
    """
    states = list(_states(events))
    ends = [*(state.begin for state in states[1:]), as_of]
    spans = [
        HistorySpan(state.lane, state.begin, end, state.details)
        for state, end in zip(states, ends, strict=True)
        if end > state.begin or state.is_chunk
    ]
    spans += [
        HistorySpan(lane, event.at - event.seconds, event.at, _words(event))
        for event in events
        if (lane := _TRANSFERS.get(event.kind))
    ]
    return sorted(spans, key=lambda span: (span.begin, span.end))


def _states(events: Sequence[TimelineEvent]) -> Iterator[_State]:
    lane, has_token = "", False
    for event, follower in zip(events, [*events[1:], None], strict=True):
        is_chunk = event.kind is EventKind.PREFILL
        following = _NEXT_LANE.get(event.kind)
        if event.kind is EventKind.RESUMED:
            following = "decode" if has_token and event.is_swap else "prefill"
        elif event.kind is EventKind.QUEUED and lane == "preempted":
            following = None
        if following:
            lane = following
            yield _State(lane, event.at, _words(event), is_chunk)
        has_token = has_token or event.kind is EventKind.FIRST_TOKEN
        if is_chunk and has_token and not _is_next_chunk(event, follower):
            lane = "decode"
            yield _State(lane, event.at, _words(event))


def _is_next_chunk(chunk: TimelineEvent, event: TimelineEvent | None) -> bool:
    """Returns whether an event is a chunk of the step after a chunk's."""
    if event is None or event.kind is not EventKind.PREFILL:
        return False
    return event.step_id == chunk.step_id + 1


def _words(event: TimelineEvent) -> str:
    return f"{name_of(event.kind)}: {details_of(event)}".removesuffix(": ")

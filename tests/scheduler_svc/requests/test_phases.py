"""Phases follow each other without gaps, and say what happened in them."""

from itertools import pairwise

import pytest

from signalbox_scheduler.requests.phases import BlockUnit, RequestPhase, phases_of
from signalbox_scheduler.requests.timeline import EventKind, TimelineEvent
from signalbox_scheduler.requests.wait_accounting import Wait, WaitReason

BLOCK = BlockUnit(tokens=16, num_bytes=1000)
BEGUN = [
    TimelineEvent(EventKind.QUEUED, 0.0, num_ahead=3),
    TimelineEvent(EventKind.SCHEDULED, 2.0, waits=(Wait(WaitReason.BLOCKS, 2.0, 7),)),
    TimelineEvent(EventKind.PREFILL, 2.0, num_tokens=30, num_cached_tokens=16),
    TimelineEvent(EventKind.PREFILL, 3.0, num_tokens=10),
    TimelineEvent(EventKind.FIRST_TOKEN, 4.0),
]


def make_phases(
    *more: TimelineEvent, token_times: tuple[float, ...] = (), end: float = 10.0
) -> list[RequestPhase]:
    phases = phases_of([*BEGUN, *more], token_times=token_times, end=end, block=BLOCK)
    assert phases[0].start == 0.0
    assert phases[-1].end == end
    for before, after in pairwise(phases):
        assert before.end == after.start
    return phases


def names(phases: list[RequestPhase]) -> list[str]:
    return [phase.name for phase in phases]


def test_a_request_that_nothing_disturbs_has_three() -> None:
    queue, prefill, decode = make_phases(token_times=(4.0, 4.5, 5.0, 7.0, 7.0))
    assert queue.attributes == {
        "signalbox.depth": 3,
        "signalbox.reason": "capacity",
        "signalbox.wait.blocks_s": 2.0,
    }
    assert prefill.attributes == {
        "signalbox.chunks": 2,
        "signalbox.cached_tokens": 16,
        "signalbox.computed_tokens": 40,
        "signalbox.blocks": 4,
    }
    assert decode.attributes == {
        "signalbox.steps": 4,
        "signalbox.tokens": 5,
        "signalbox.time_per_token.mean_s": 1.0,
        "signalbox.time_per_token.p99_s": 2.0,
    }


def test_a_swapped_request_decodes_again_when_it_is_back() -> None:
    phases = make_phases(
        TimelineEvent(EventKind.PREEMPTED, 5.0, num_blocks=4, is_swap=True, other_request_id="b"),
        TimelineEvent(EventKind.RESUMED, 6.0, num_blocks=4, is_swap=True),
        token_times=(4.0, 6.5, 7.0),
    )
    assert names(phases) == ["queue", "prefill", "decode", "preempted", "decode"]
    assert phases[3].attributes == {
        "signalbox.mode": "swap",
        "signalbox.blocks": 4,
        "signalbox.bytes": 4000,
        "signalbox.preempted_by": "b",
    }
    assert [phase.attributes["signalbox.tokens"] for phase in (phases[2], phases[4])] == [1, 2]


@pytest.mark.parametrize("kind", [EventKind.PREEMPTED, EventKind.MOVED])
def test_what_is_computed_again_is_prefill_until_the_next_token(kind: EventKind) -> None:
    phases = make_phases(
        TimelineEvent(kind, 5.0, num_blocks=4, worker="a", detail="lost"),
        TimelineEvent(EventKind.QUEUED, 5.0),
        TimelineEvent(EventKind.RESUMED, 6.0, worker="b"),
        TimelineEvent(EventKind.PREFILL, 6.0, num_tokens=42),
        token_times=(4.0, 6.5, 7.0),
    )
    away = "preempted" if kind is EventKind.PREEMPTED else "failover"
    assert names(phases) == ["queue", "prefill", "decode", away, "prefill", "decode"]
    assert phases[4].attributes["signalbox.computed_tokens"] == 42
    assert phases[4].end == 6.5
    if kind is EventKind.MOVED:
        assert phases[3].attributes["signalbox.from_worker"] == "a"
        assert phases[3].attributes["signalbox.to_worker"] == "b"


def test_a_request_that_ends_while_it_is_out_was_out_until_then() -> None:
    phases = make_phases(TimelineEvent(EventKind.PREEMPTED, 5.0, num_blocks=4))
    assert names(phases) == ["queue", "prefill", "decode", "preempted"]


def test_a_request_that_never_ran_only_waited() -> None:
    (queue,) = phases_of(BEGUN[:1], token_times=(), end=9.0, block=BlockUnit())
    assert (queue.name, queue.start, queue.end) == ("queue", 0.0, 9.0)


def test_a_request_that_loads_waits_for_that_in_its_queue() -> None:
    waits = (Wait(WaitReason.LOADING, 1.5, 0), Wait(WaitReason.NEXT_STEP, 0.5, 1))
    fetched = TimelineEvent(EventKind.FETCHED, 1.0, num_blocks=2, num_bytes=2000, seconds=0.5)
    events = [BEGUN[0], fetched, BEGUN[1]._replace(waits=waits), *BEGUN[2:]]
    queue, *_ = phases_of(events, token_times=(4.0,), end=10.0, block=BLOCK)
    assert queue.attributes == {
        "signalbox.depth": 3,
        "signalbox.reason": "loading",
        "signalbox.wait.loading_s": 1.5,
        "signalbox.wait.next_step_s": 0.5,
    }

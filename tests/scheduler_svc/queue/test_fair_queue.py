"""Flows take turns by what they were served; no flow saves turns up, and none waits for ever."""

import itertools

import hypothesis.strategies as st
from hypothesis import given, settings

from signalbox_scheduler.queue import fair_queue
from signalbox_scheduler.queue.fair_queue import Flows
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from tests.scheduler_svc.make import make_request

_arrivals = itertools.count()


def make_waiting(flow: str, *, rank: float | None = None) -> SequenceGroup:
    group = make_request([1])
    group.flow = flow
    group.rank = float(next(_arrivals)) if rank is None else rank
    return group


def pop_first(waiting: Flows) -> SequenceGroup:
    group = waiting.first()
    assert group is not None
    waiting.pop(group)
    return group


@settings(max_examples=200)
@given(data=st.data())
def test_the_first_is_always_of_least_virtual_time_and_then_of_least_rank(
    data: st.DataObject,
) -> None:
    waiting = Flows()
    groups: list[SequenceGroup] = []
    names = st.sampled_from("abcd")
    for _ in range(data.draw(st.integers(1, 60))):
        match data.draw(st.sampled_from(["add", "add", "pop", "remove", "charge"])):
            case "add":
                rank = float(data.draw(st.integers(0, 9)))
                groups.append(make_waiting(data.draw(names), rank=rank))
                waiting.add(groups[-1])
            case "pop" if groups:
                groups.remove(pop_first(waiting))
            case "remove" if groups:
                gone = groups.pop(data.draw(st.integers(0, len(groups) - 1)))
                waiting.remove(gone)
            case "charge":
                waiting.charge(data.draw(names), data.draw(st.integers(0, 5)))
        waiting.check()
        in_order = list(waiting.in_order())
        assert set(in_order) == set(groups)
        places = [(waiting.virtual_time(group.flow), group.rank) for group in in_order]
        assert places == sorted(places)
        for i, group in enumerate(in_order):
            assert waiting.num_ahead(group) <= i
        assert waiting.first() is (in_order[0] if in_order else None)


def test_a_flow_begins_where_those_are_that_wait() -> None:
    waiting = Flows()
    for name in ("served much", "served little"):
        waiting.add(make_waiting(name))
    waiting.charge("served much", 100.0)
    waiting.charge("served little", 30.0)
    waiting.add(make_waiting("new"))
    assert waiting.virtual_time("new") == 30.0


def test_what_a_flow_was_served_is_not_forgotten_when_it_comes_back() -> None:
    waiting = Flows()
    for name in ("served much", "served little"):
        waiting.add(make_waiting(name))
    assert pop_first(waiting).flow == "served much"
    waiting.charge("served much", 100.0)
    waiting.add(make_waiting("served much"))
    assert waiting.virtual_time("served much") == 100.0


def test_a_flow_that_nobody_waits_beside_begins_where_the_last_one_was() -> None:
    waiting = Flows()
    waiting.add(make_waiting("last"))
    pop_first(waiting)
    waiting.charge("last", 50.0)  # what it generates afterwards counts too
    waiting.add(make_waiting("new"))
    assert waiting.virtual_time("new") == 50.0


def test_flows_that_nobody_heard_of_do_not_overtake_an_old_one_for_ever() -> None:
    """Each new flow would begin at the least virtual time, before one that was served a lot."""
    waiting = Flows()
    old = make_waiting("old")
    waiting.add(old)
    waiting.add(make_waiting("another"))
    waiting.charge("old", 1000.0)
    for i in range(200):
        waiting.add(make_waiting(f"new {i}"))
        taken = pop_first(waiting)
        if taken is old:
            return
        waiting.charge(taken.flow, 5.0)
        waiting.check()
    raise AssertionError("the old flow never had its turn")


def test_virtual_times_of_flows_that_matter_no_longer_are_dropped() -> None:
    waiting = Flows()
    for i in range(3 * fair_queue.MAX_RESTING):
        waiting.add(make_waiting(f"flow {i}"))
        waiting.charge(pop_first(waiting).flow, 1.0)
    waiting.check()
    assert len(waiting._virtual_times) <= fair_queue.MAX_RESTING + 1


def test_virtual_times_are_bounded_while_some_flow_always_waits() -> None:
    """Flows that come once, as those of a client of many addresses, lift nothing."""
    waiting = Flows()
    waiting.add(make_waiting("flow"))
    for i in range(5 * fair_queue.MAX_RESTING):
        waiting.add(make_waiting(f"flow {i}"))
        waiting.charge(pop_first(waiting).flow, 1.0)
    waiting.check()
    assert len(waiting._virtual_times) <= 2 * fair_queue.MAX_RESTING + 4


def test_flows_that_were_served_most_are_remembered_longest() -> None:
    waiting = Flows()
    waiting.add(make_waiting("greedy"))
    waiting.add(make_waiting("flow"))
    waiting.charge(pop_first(waiting).flow, 1000.0)
    for i in range(5 * fair_queue.MAX_RESTING):
        waiting.add(make_waiting(f"flow {i}"))
        waiting.charge(pop_first(waiting).flow, 1.0)
    assert waiting.virtual_time("greedy") == 1000.0
    waiting.check()


def test_the_heap_does_not_grow_with_what_has_changed() -> None:
    waiting = Flows()
    waiting.add(make_waiting("first"))
    for _ in range(1000):
        group = make_waiting("second")
        waiting.add(group)
        waiting.charge("second", 1.0)
        waiting.remove(group)
    waiting.check()
    assert len(waiting._heap) < 100

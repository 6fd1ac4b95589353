"""Benchmarks in simulated time: the scheduler is the real one, and its clients get every token."""

import random
from dataclasses import replace

import pytest

from benchmarks import disaggregation, drain, found_prefixes, rebalancing
from benchmarks.harness.answers import Answer, Asked
from benchmarks.simulated_time.event_clock import EventClock
from benchmarks.simulated_time.simulated_pool import SimulatedPool
from benchmarks.simulated_time.step_costs import PROFILES, StepCosts, StepWork
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig

COSTS = StepCosts(
    name="costs",
    launch_s=0.001,
    weights_s=0.004,
    token_s=0.001,
    read_s=0.0,
    pair_s=0.0,
    block_bytes=1 << 20,
    copy_bytes_per_s=1e9,
    peer_bytes_per_s=1e9,
)


def make_pool(*, num_workers: int = 1, num_gpu_blocks: int = 64) -> SimulatedPool:
    settings = SchedulerConfig(preemption_mode=PreemptionMode.RECOMPUTE)
    return SimulatedPool(
        COSTS,
        num_workers=num_workers,
        max_num_seqs=8,
        num_gpu_blocks=num_gpu_blocks,
        settings=settings,
    )


def test_events_happen_in_the_order_of_their_times_and_a_past_one_at_once() -> None:
    clock, seen = EventClock(), list[tuple[str, float]]()

    def note(name: str) -> None:
        seen.append((name, clock.now))
        if name == "first":
            clock.call_at(0.5, lambda: note("late"))

    clock.call_at(2.0, lambda: note("second"))
    clock.call_at(1.0, lambda: note("first"))
    clock.run(until=1.5)
    assert seen == [("first", 1.0), ("late", 1.0)]
    assert clock.now == 1.5
    clock.run(until=9.0)
    assert seen[2:] == [("second", 2.0)]


def test_tokens_of_a_step_share_the_reading_of_the_weights() -> None:
    assert COSTS.step_s(StepWork(num_seqs=1, num_tokens=1)) == pytest.approx(0.005)
    assert COSTS.step_s(StepWork(num_seqs=4, num_tokens=4)) == pytest.approx(0.005)
    assert COSTS.step_s(StepWork(num_seqs=1, num_tokens=100)) == pytest.approx(0.101)
    assert COSTS.step_s(StepWork(num_seqs=0, num_tokens=0)) == pytest.approx(0.001)


def test_a_request_takes_as_long_as_its_steps_cost() -> None:
    pool = make_pool()
    pool.ask_at(1.0, Asked(100, 3))
    pool.clock.run(until=1e9)
    pool.check()
    (answer,) = pool.clients.answers
    assert answer.first_token_s == pytest.approx(0.101, abs=0.003)
    assert answer.gaps_s == pytest.approx([0.005, 0.005], abs=0.003)


def test_requests_that_preempt_each_other_get_all_their_tokens() -> None:
    pool = make_pool(num_gpu_blocks=8)
    for _ in range(6):
        pool.ask(Asked(40, 40))
    pool.clock.run(until=1e9)
    pool.check()


def test_what_a_drained_worker_leaves_is_computed_on_another() -> None:
    pool = make_pool(num_workers=2)
    for _ in range(6):
        pool.ask(Asked(40, 100))
    pool.clock.run(until=0.3)
    pool.drain(pool.workers[0], within_s=0.0)
    pool.clock.run(until=1e9)
    pool.check()
    assert len(pool.cluster.step_loops) == 1


def test_pools_are_put_the_same_requests() -> None:
    load = disaggregation.LOADS["h100"]
    kinds = [disaggregation.PoolKind(512), disaggregation.PoolKind(2048, num_prefill=1)]
    first, second = (
        disaggregation.measure(PROFILES["h100"], load, kind, num_workers=2, rate=8.0, seconds=3.0)
        for kind in kinds
    )
    assert [(one.asked, one.sent_at) for one in first] == [
        (one.asked, one.sent_at) for one in second
    ]
    assert {one.asked for one in first} == {load.chat, load.long}
    assert f"| 8 | {kinds[0].name} |" in disaggregation.row(
        load, kinds[0], first, rate=8.0, seconds=3.0
    )


def test_an_answer_is_good_within_both_objectives() -> None:
    load = disaggregation.LOADS["h100"]
    latest = load.first_token_s + 2 * load.per_token_s
    for times, is_good in (
        ([load.first_token_s, latest], False),
        ([load.first_token_s, load.first_token_s + 0.9 * load.per_token_s], True),
        ([load.first_token_s + 0.01] * 2, False),
        ([0.0], False),
    ):
        answer = Answer(Asked(8, 2), sent_at=0.0, token_times=times)
        assert load.is_good(answer) is is_good, times


def test_streams_that_are_handed_over_stop_for_less_than_those_that_are_computed_anew() -> None:
    costs = PROFILES["h100"]
    anew, over = (
        drain.measure(costs, context=2048, num_streams=4, within_s=5.0, hands_over=hands_over)
        for hands_over in (False, True)
    )
    assert (anew.num_out, over.num_out) == (0, 4)
    assert anew.longest > costs.prefill_s(2048) > over.longest >= over.median


def test_streams_end_earlier_if_a_worker_that_joins_takes_some_over() -> None:
    stay, rebalanced = (
        rebalancing.measure(
            PROFILES["h100"], context=8192, num_streams=12, num_tokens=400, moves=moves
        )
        for moves in (False, True)
    )
    assert stay.num_out == 0
    assert 1 < rebalanced.num_out <= 8
    assert rebalanced.num_most == 1
    assert rebalanced.median < stay.median
    assert rebalanced.duration < stay.duration


def test_a_worker_on_which_steps_would_take_as_long_gets_one_stream() -> None:
    rebalanced = rebalancing.measure(replace(COSTS, token_s=1e-6), context=512, num_streams=8)
    assert rebalanced.num_out == 1


def test_full_attention_finds_all_that_prompts_have_in_common() -> None:
    rng = random.Random(0)
    threads = [found_prefixes.shared_prefix(rng, 3, is_named=True) for _ in range(4)]
    asked = list(found_prefixes.rounds(threads, rng))
    most, num_blocks = found_prefixes.common_prefixes(asked)
    assert found_prefixes.found(asked, num_blocks) == most > 0

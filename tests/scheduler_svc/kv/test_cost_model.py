"""The choice between swap and recompute follows the rates that the worker shows."""

import pytest

from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.planning.swapping import STEPS_TO_RETRY
from signalbox_scheduler.requests.sequence_group import SequenceStatus
from tests.scheduler_svc.make import make_loop, make_request, make_scheduler

FAST_COPIES = CostModel(block_bytes=1000, copy_bytes_per_s=1e9, prefill_tokens_per_s=100)
SLOW_COPIES = CostModel(block_bytes=1000, copy_bytes_per_s=1e3, prefill_tokens_per_s=1e6)


@pytest.mark.parametrize(
    ("cost", "status"),
    [(FAST_COPIES, SequenceStatus.SWAPPED), (SLOW_COPIES, SequenceStatus.WAITING)],
)
def test_auto_takes_what_costs_less(cost: CostModel, status: SequenceStatus) -> None:
    scheduler = make_scheduler(
        num_gpu_blocks=6, num_cpu_blocks=6, mode=PreemptionMode.AUTO, cost=cost
    )
    loop = make_loop(scheduler, depth=1)
    groups = [make_request([i + 1] * 8, max_tokens=12, arrival=float(i)) for i in range(2)]
    for group in groups:
        scheduler.admission.add(group)
    while not scheduler.preemption.num_preemptions:
        loop.turn()
    assert groups[1].sequences[0].status is status
    loop.run()
    scheduler.check()
    assert scheduler.blocks.gpu.num_free == scheduler.blocks.gpu.num_blocks


def test_rates_follow_what_answers_show() -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6, prefill_tokens_per_s=10)
    for _ in range(200):
        cost.observe_swaps(num_blocks=10, num_copies=0, swap_ns=1_000_000)
        cost.observe_prefill(num_seqs=1, num_tokens=100, forward_ns=1_000_000_000)
    assert cost.copy_bytes_per_s == pytest.approx(1e7, rel=0.01)
    assert cost.prefill_tokens_per_s == pytest.approx(100, rel=0.01)
    assert cost.copy_s(10) == pytest.approx(1e-3, rel=0.01)
    assert cost.recompute_s(100) == pytest.approx(1.0, rel=0.01)


def test_small_steps_say_nothing_of_the_prefill_rate() -> None:
    cost = CostModel(prefill_tokens_per_s=500)
    cost.observe_prefill(num_seqs=1, num_tokens=1, forward_ns=1_000_000_000)
    assert cost.prefill_tokens_per_s == 500


def test_steps_of_decodes_say_nothing_of_the_prefill_rate() -> None:
    cost = CostModel(prefill_tokens_per_s=500)
    cost.observe_prefill(num_seqs=64, num_tokens=64, forward_ns=1_000_000_000)
    assert cost.prefill_tokens_per_s == 500


def test_a_long_prefill_says_more_than_many_short_ones() -> None:
    cost = CostModel(prefill_tokens_per_s=1000)
    for _ in range(8):  # 100 tokens a second
        cost.observe_prefill(num_seqs=1, num_tokens=32, forward_ns=320_000_000)
    cost.observe_prefill(num_seqs=1, num_tokens=4096, forward_ns=4_096_000_000)
    assert cost.prefill_tokens_per_s > 500


def test_copies_beside_copies_on_write_say_nothing_of_the_rate_of_swaps() -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6)
    cost.observe_swaps(num_blocks=1, num_copies=1, swap_ns=1_000_000_000)
    assert cost.copy_bytes_per_s == 1e6


@pytest.mark.parametrize(
    ("copies_per_recompute", "fetches", "keeps"),
    [(0.5, False, False), (2, True, False), (16, True, False), (18, True, True)],
)
def test_evicted_blocks_are_kept_if_few_hits_pay_for_all(
    copies_per_recompute: float, fetches: bool, keeps: bool
) -> None:
    """Of a block that takes a millisecond to copy."""
    cost = CostModel(
        block_bytes=1000,
        copy_bytes_per_s=1e6,
        prefill_tokens_per_s=16 / (copies_per_recompute * 1e-3),
    )
    assert cost.fetches(block_size=16) is fetches
    assert cost.keeps_more(1, num_kept=0, block_size=16) is keeps
    assert not cost.keeps_more(1, num_kept=5, block_size=16)


@pytest.mark.parametrize(("step_s", "most"), [(0.0, 5), (0.01, 5), (0.16, 10)])
def test_more_blocks_are_copied_for_what_waits_for_long_steps(step_s: float, most: int) -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6)
    assert cost.keeps_more_copies(num_copies=most - 1, step_s=step_s)
    assert not cost.keeps_more_copies(num_copies=most, step_s=step_s)


@pytest.mark.parametrize(("step_s", "most"), [(0.0, 1), (0.01, 1), (0.03, 3), (0.1, 6)])
def test_copies_that_are_to_make_steps_shorter_take_little_of_a_step(
    step_s: float, most: int
) -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6)
    for num_copies in range(10):
        keeps_more = cost.keeps_more_copies(num_copies=num_copies, step_s=step_s, is_urgent=False)
        assert keeps_more is (num_copies < most)


def test_a_decode_is_expected_to_take_as_long_as_the_last_one_by_its_sequences_at_most() -> None:
    cost = CostModel()
    assert cost.decode_s(8) == 0.0
    cost.observe_decode(num_seqs=4, seconds=0.2)
    assert [cost.decode_s(num_seqs) for num_seqs in (1, 4, 8)] == [0.05, 0.2, 0.2]


def test_what_is_not_known_costs_nothing() -> None:
    cost = CostModel()
    assert cost.fetches(block_size=16)
    assert cost.keeps_more(1, num_kept=1000, block_size=16)
    assert cost.prefers_swap(num_blocks=1, num_tokens=16)


def test_a_step_that_was_held_up_does_not_put_an_end_to_copies() -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6)
    cost.observe_swaps(num_blocks=1, num_copies=0, swap_ns=10_000_000_000)
    assert cost.copy_bytes_per_s > 0.9e6


def test_copies_that_seemed_too_dear_are_tried_again() -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6)
    for _ in range(10):
        cost.observe_swaps(num_blocks=100, num_copies=0, swap_ns=10_000_000_000)
    assert cost.copy_bytes_per_s < 1e5
    most = 2 * STEPS_TO_RETRY
    loop = make_loop(make_scheduler(cost=cost, num_gpu_blocks=most, max_model_len=most), depth=1)
    loop.scheduler.admission.add(make_request([1], max_tokens=most))
    while loop.scheduler.num_steps < STEPS_TO_RETRY:
        assert cost.copy_bytes_per_s < 1e5
        loop.turn()
    assert cost.copy_bytes_per_s == 1e6


def test_fetches_from_a_store_and_from_workers_have_rates_of_their_own() -> None:
    cost = CostModel(block_bytes=1000, prefill_tokens_per_s=1000.0, load_bytes_per_s=1e9)
    cost.observe_load(num_bytes=100_000, seconds=10.0, from_peer=True)
    assert cost.load_bytes_per_s == 1e9
    assert cost.peer_bytes_per_s == pytest.approx(1e4)
    assert cost.is_less(cost.load_s(10), num_tokens=160)
    assert not cost.is_less(cost.load_s(10, from_peer=True), num_tokens=160)
    assert cost.load_s(10, from_peer=True) > 1.0 > cost.load_s(10)


def test_few_fetches_that_are_far_too_slow_or_fast_change_a_rate() -> None:
    cost = CostModel(block_bytes=1000, load_bytes_per_s=1e9)
    for _ in range(4):
        cost.observe_load(num_bytes=10_000, seconds=10.0)
    assert 1e3 < cost.load_bytes_per_s < 4e3
    for _ in range(4):
        cost.observe_load(num_bytes=10_000, seconds=1e-5)
    assert 2.5e8 < cost.load_bytes_per_s < 1e9


def test_one_fetch_that_takes_no_longer_than_most_steps_says_little() -> None:
    cost = CostModel(block_bytes=1000, load_bytes_per_s=1e9)
    cost.observe_load(num_bytes=1000, seconds=0.009)
    assert cost.load_bytes_per_s > 0.97e9


def test_a_fetch_that_was_given_up_shows_that_it_was_slow() -> None:
    cost = CostModel(block_bytes=1000)
    cost.observe_load(num_bytes=0, seconds=0.001, is_whole=False)
    assert cost.load_bytes_per_s == 0, "it was called off before it could have ended"
    cost.observe_load(num_bytes=0, seconds=1.0, is_whole=False)
    assert cost.load_bytes_per_s == 1000
    cost.observe_load(num_bytes=4000, seconds=1.0, is_whole=False)
    assert cost.load_bytes_per_s == 1000, "it may have been as fast as any"

"""The choice between swap and recompute follows the rates that the worker shows."""

import pytest

from scheduler_svc.block_allocator import BlockCopy
from scheduler_svc.config import PreemptionMode
from scheduler_svc.cost import CostModel
from scheduler_svc.plan import StepPlan, StepTimings
from scheduler_svc.sequence import SequenceStatus
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
    while not scheduler.num_preemptions:
        loop.send()
        loop.answer()
    assert groups[1].sequences[0].status is status
    loop.run()
    scheduler.check()
    assert scheduler.blocks.gpu.num_free == scheduler.blocks.gpu.num_blocks


def test_rates_follow_what_answers_show() -> None:
    cost = CostModel(block_bytes=1000, copy_bytes_per_s=1e6, prefill_tokens_per_s=10)
    plan = StepPlan(step_id=1, token_budget=0, swap_out=[BlockCopy(i, i) for i in range(10)])
    plan.num_new_tokens = [100]
    for _ in range(200):
        cost.observe(plan, StepTimings(swap_ns=1_000_000, forward_ns=1_000_000_000))
    assert cost.copy_bytes_per_s == pytest.approx(1e7, rel=0.01)
    assert cost.prefill_tokens_per_s == pytest.approx(100, rel=0.01)
    assert cost.copy_s(10) == pytest.approx(1e-3, rel=0.01)
    assert cost.recompute_s(100) == pytest.approx(1.0, rel=0.01)


def test_small_steps_say_nothing_of_the_prefill_rate() -> None:
    cost = CostModel(prefill_tokens_per_s=500)
    plan = StepPlan(step_id=1, token_budget=0, num_new_tokens=[1])
    cost.observe(plan, StepTimings(forward_ns=1_000_000_000))
    assert cost.prefill_tokens_per_s == 500

"""More than can be served: what is served is served whole, in full steps; the rest is told when."""

import asyncio

from benchmarks.overload import MAX_TOKENS, PROMPT_TOKENS, Offered, ask
from scheduler_svc.config import SchedulerConfig
from signalbox.bench.workload import random_prompts
from tests.integration.stack import assert_idle
from tests.integration.test_stack import make_stack

PLACES = 8
QUEUE = 24
FACTOR = 5


async def tokens_a_step(num_requests: int) -> tuple[float, Offered]:
    """Offers so many requests at once; returns how full the worker's steps were, and the ends."""
    offered = Offered()
    prompts = random_prompts(vocab_size=512, num_tokens=PROMPT_TOKENS, seed=1)
    config = SchedulerConfig(port=0, max_queued_requests=QUEUE)
    async with make_stack(config=config, max_num_seqs=PLACES, step_ns=2_000_000) as stack:
        await asyncio.gather(
            *(ask(stack.stub, next(prompts), offered) for _ in range(num_requests))
        )
        scheduler = stack.scheduler.cluster.step_loops[0].scheduler
        await assert_idle(stack.scheduler)
        return MAX_TOKENS * len(offered.ended_at) / scheduler.num_steps, offered


async def test_overload_costs_no_goodput_and_refusals_say_when_to_come_again() -> None:
    saturated, alone = await tokens_a_step(QUEUE)
    overloaded, offered = await tokens_a_step(FACTOR * QUEUE)
    assert len(alone.ended_at) == QUEUE
    assert not alone.refused_s
    assert len(offered.ended_at) >= QUEUE
    assert len(offered.refused_s) == FACTOR * QUEUE - len(offered.ended_at) > 0
    assert not alone.other
    assert not offered.other
    assert overloaded > 0.9 * saturated

"""More than can be served: what is served is served whole, in full steps; the rest is told when."""

import asyncio
import threading

import pytest

from benchmarks.harness.prompts import random_prompts
from benchmarks.overload import PROMPT_TOKENS, Offered, ask
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.integration.stack import assert_idle
from tests.integration.test_stack import make_stack
from tests.waiting import eventually

PLACES = 8
QUEUE = 24
FACTOR = 5


async def serve(
    num_requests: int, *, queue: int, monkeypatch: pytest.MonkeyPatch
) -> tuple[int, Offered]:
    """Offers so many requests during the first step; returns the number of steps, and the ends."""
    offered, all_have_come = Offered(), threading.Event()
    execute = SimulatedRunner.execute

    def wait_and_execute(runner: SimulatedRunner, batch: Batch) -> BatchOutput:
        all_have_come.wait()
        return execute(runner, batch)

    monkeypatch.setattr(SimulatedRunner, "execute", wait_and_execute)
    prompts = random_prompts(vocab_size=512, num_tokens=PROMPT_TOKENS, seed=1)
    config = SchedulerConfig(port=0, max_queued_requests=queue)
    async with make_stack(config=config, max_num_seqs=PLACES) as stack:
        requests = stack.scheduler.cluster.requests
        asking = asyncio.gather(
            *(ask(stack.stub, next(prompts), offered) for _ in range(num_requests))
        )
        try:
            await eventually(lambda: len(offered.refused_s) + len(requests) == num_requests)
        finally:
            all_have_come.set()
        await asking
        scheduler = stack.scheduler.cluster.step_loops[0].scheduler
        await assert_idle(stack.scheduler)
        monkeypatch.undo()
        return scheduler.num_steps, offered


async def test_overload_costs_no_goodput_and_refusals_say_when_to_come_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    overloaded, offered = await serve(FACTOR * QUEUE, queue=QUEUE, monkeypatch=monkeypatch)
    num_served = len(offered.ended_at)
    alone, served = await serve(num_served, queue=num_served, monkeypatch=monkeypatch)
    assert len(served.ended_at) == num_served >= QUEUE
    assert not served.refused_s
    assert len(offered.refused_s) == FACTOR * QUEUE - num_served > 0
    assert not served.other
    assert not offered.other
    assert 0.9 * overloaded < alone

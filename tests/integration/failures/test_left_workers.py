"""A scheduler keeps nothing of workers that left or were refused, even if Python's garbage
collector never runs."""

import asyncio
import gc
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import psutil
import pytest

from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.service.registration_client import Registration
from tests.integration.stack import (
    RunningScheduler,
    RunningWorker,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)

NUM_TIMES = 100
MAX_BYTES = 5 << 20
SIZES = {"num_gpu_blocks": 20_000, "num_cpu_blocks": 2_000}


@pytest.fixture
def uncollected() -> Iterator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@asynccontextmanager
async def unregistered(**model: object) -> AsyncIterator[RunningWorker]:
    """A worker that has left its scheduler, and may register with others."""
    async with (
        running_scheduler(SchedulerConfig(port=0)) as first,
        running_worker(first.address, simulated(**SIZES, **model)) as worker,
    ):
        await worker.registration.wait_accepted()
        worker.task.cancel()
        await asyncio.gather(worker.task, return_exceptions=True)
        yield worker


async def register(scheduler: RunningScheduler, worker: RunningWorker, *, joins: bool) -> None:
    """Registers a worker once; returns when it has been refused, or has left."""
    registering = asyncio.create_task(
        Registration(
            worker=worker.worker,
            scheduler_address=scheduler.address,
            advertised_address=worker.server.address,
        ).run()
    )
    if joins:
        await until_workers(scheduler, 1)
        registering.cancel()
    await asyncio.gather(registering, return_exceptions=True)
    if joins:
        await until_workers(scheduler, 0)


def held() -> tuple[int, int]:
    """Returns the open files of this process, and its bytes in memory."""
    return len([*Path("/proc/self/fd").iterdir()]), psutil.Process().memory_info().rss


@pytest.mark.parametrize("joins", [True, False])
async def test_workers_that_left_or_were_refused_leave_no_file_and_no_memory(
    joins: bool, uncollected: None
) -> None:
    config = SchedulerConfig(port=0, worker_quarantine=0)
    async with running_scheduler(config) as scheduler, AsyncExitStack() as others:
        worker = await others.enter_async_context(unregistered(name="other"))
        if not joins:  # but one that serves another model
            await others.enter_async_context(running_worker(scheduler.address, simulated(**SIZES)))
            await until_workers(scheduler, 1)
        for _ in range(3):
            await register(scheduler, worker, joins=joins)
        num_files, num_bytes = held()
        for _ in range(NUM_TIMES):
            await register(scheduler, worker, joins=joins)
        files, rss = held()
    assert files <= num_files + 2  # a connection that is being closed
    assert rss - num_bytes < MAX_BYTES

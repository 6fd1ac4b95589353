"""A worker process finds on a server what another one has computed."""

import itertools
from pathlib import Path

import pytest

from signalbox_scheduler.config import SchedulerConfig
from tests.gpu_worker.kv.shared.redis_servers import needs_redis, redis, write_secret
from tests.gpu_worker.tiny_models import make_llama
from tests.integration.stack import Router, RunningScheduler, assert_idle, router, running_scheduler
from tests.integration.test_drained_workers import worker_process
from tests.scheduler_svc.make import transfers
from tests.waiting import eventually

PROMPT = list(range(3, 64)) * 3
NUM_BLOCKS = (len(PROMPT) - 1) // 16

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("patient_moves", "loading_pays")]


async def tokens(client: Router, handle: int) -> list[int]:
    await client.add(handle, PROMPT, max_tokens=8)
    (got,) = await client.ended(handle)
    got.assert_served()
    return got.tokens[0]


async def until_open(scheduler: RunningScheduler, log: Path) -> None:
    """Waits for a worker whose tier finds and keeps blocks."""
    await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
    await eventually(lambda: "shared tier of KV blocks: open after" in log.read_text())


@needs_redis
async def test_a_worker_process_finds_what_another_has_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("signalbox_scheduler.transfers.write_behind.PAUSE_S", 0.1)
    (model := tmp_path / "model").mkdir()
    make_llama(model)
    key = write_secret(tmp_path / "key", b"k" * 32)
    first, second = tmp_path / "first", tmp_path / "second"
    handles = itertools.count()
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        with redis() as server:
            flags = (f"--kv-store={server.url}", f"--kv-store-key={key}")
            with worker_process(model, scheduler.address, first, *flags):
                await until_open(scheduler, first)
                expected = await tokens(client, next(handles))
                while len(server.keys()) < NUM_BLOCKS:
                    assert await tokens(client, next(handles)) == expected
                await assert_idle(scheduler)
            await eventually(lambda: not scheduler.cluster.step_loops)
            num_hits = 0
            while num_hits < 16 * NUM_BLOCKS:  # on a busy machine a call may come too late
                with worker_process(model, scheduler.address, second, *flags):
                    await until_open(scheduler, second)
                    assert await tokens(client, next(handles)) == expected
                    await assert_idle(scheduler)
                    (loop,) = scheduler.cluster.step_loops
                    num_hits = transfers(loop.scheduler).loading.counts.num_hits
                await eventually(lambda: not scheduler.cluster.step_loops)

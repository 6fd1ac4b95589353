"""Processes of workers that are drained end, and their requests go on at others as they were."""

import asyncio
import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import NotKnown
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from tests.gpu_worker.tiny_models import make_llama
from tests.integration.stack import (
    assert_idle,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.integration.test_migrations_of_models import outputs, start, take_nothing_new
from tests.scheduler_svc.make import transfers
from tests.signalbox.stacks import COMMAND, environment, run_here
from tests.waiting import EVENT_S, eventually

FLAGS = (
    *("--device=cpu", "--dtype=float32", "--cpu-backend=native", "--num-threads=1"),
    *("--kv-cache-memory=0.05", "--swap-space=0.05", "--drain-timeout=120"),
)


@contextlib.contextmanager
def worker_process(
    model: Path, scheduler: str, log: Path, *flags: str
) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as sink:
        command = [*COMMAND, "worker", str(model), *FLAGS, *flags, f"--scheduler={scheduler}"]
        process = subprocess.Popen([*command, "--port=0"], env=environment(), stderr=sink)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.system
@pytest.mark.parametrize("how", ["SIGTERM", "signalbox drain"])
async def test_streams_of_a_worker_that_is_drained_go_on_without_recompute(
    how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (model := tmp_path / "model").mkdir()
    make_llama(model)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
        contextlib.AsyncExitStack() as stack,
    ):
        loops = scheduler.cluster.step_loops
        first = stack.enter_context(worker_process(model, scheduler.address, tmp_path / "first"))
        await eventually(lambda: len(loops) == 1)
        expected = await outputs(client, await start(client, 0))
        with worker_process(model, scheduler.address, tmp_path / "second"):
            await eventually(lambda: len(loops) == 2)
            source, destination = (loop.scheduler for loop in loops)
            take_nothing_new(destination, monkeypatch)
            handles = await start(client, 100)
            await eventually(lambda: all(client.got[handle].tokens for handle in handles))
            hold_until_drained(source, monkeypatch)
            await drain(how, source, first, scheduler.address)
            assert await outputs(client, handles) == expected
            assert transfers(destination).migrations.num_in > 0
            assert destination.output_processor.num_prompt_tokens == 0, (
                "a prompt was computed again"
            )
            assert await asyncio.to_thread(first.wait, EVENT_S) == 0
            await eventually(lambda: len(loops) == 1)
            await assert_idle(scheduler)


def hold_until_drained(scheduler: Scheduler, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans nothing more before the worker drains, however long the command for that takes."""
    fill = scheduler.planner.fill

    def fill_if_drained(plan: StepPlan, now: float) -> None:
        if not scheduler.is_accepting:
            fill(plan, now)

    monkeypatch.setattr(scheduler.planner, "fill", fill_if_drained)


async def drain(
    how: str, source: Scheduler, process: subprocess.Popen[bytes], scheduler: str
) -> None:
    if how == "SIGTERM":
        process.send_signal(signal.SIGTERM)
        return
    arguments = ("drain", source.worker_name, "--scheduler", scheduler)
    done = await asyncio.to_thread(run_here, *arguments)
    assert done.returncode == 0, done.stderr
    assert f"{source.worker_name} drains; requests on it: " in done.stdout


async def test_a_worker_that_an_operator_drains_leaves() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated()) as worker,
        SchedulerClient(scheduler.address) as client,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        (name,) = (loop.worker_name for loop in loops)
        with pytest.raises(NotKnown, match=f"no worker has joined at 'w:1'; workers: {name}"):
            await client.drain("w:1")
        assert await client.drain(name) == 0
        await worker.task
        await eventually(lambda: not loops)

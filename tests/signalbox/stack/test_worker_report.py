"""The scheduler hears how many workers are kept and what they wait for; the launcher is a fake."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import CallRefused
from signalbox.stack.worker_report import report_workers
from signalbox_protos.scheduler.v1 import stats_pb2
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import RunningScheduler, restarted, running_scheduler
from tests.ports import free_port
from tests.signalbox.stack.fake_workers import FakeLauncher
from tests.waiting import EVENT_S


async def until(
    client: SchedulerClient, condition: Callable[[stats_pb2.GetStatsResponse], object]
) -> stats_pb2.LauncherState:
    """Returns what the scheduler says of the launcher, once the condition holds."""
    async with asyncio.timeout(EVENT_S):
        while not condition(found := await client.stats()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found.launcher


@asynccontextmanager
async def reporting() -> AsyncIterator[tuple[FakeLauncher, RunningScheduler, SchedulerClient]]:
    """A launcher of two workers, the scheduler that hears it, and an operator's client."""
    launcher = FakeLauncher()
    await launcher.started(2)
    async with (
        running_scheduler(SchedulerConfig(port=free_port())) as scheduler,
        SchedulerClient(scheduler.address) as own,
        SchedulerClient(scheduler.address) as client,
    ):
        task = asyncio.create_task(
            report_workers(launcher.supervisor, own, placement="local", num_workers=2)
        )
        try:
            await until(client, lambda stats: stats.HasField("launcher"))
            yield launcher, scheduler, client
            assert not task.done()
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await launcher.stop()


async def test_an_operator_sees_what_workers_wait_for_and_that_the_wait_is_over() -> None:
    async with reporting() as (launcher, _, client):
        launcher.supervisor.waits("worker 1", "Ray has no room")
        state = await until(client, lambda stats: stats.launcher.pending)
        assert (state.placement, state.num_workers) == ("local", 2)
        (pending,) = state.pending
        assert (pending.name, pending.reason) == ("worker 1", "Ray has no room")
        launcher.supervisor.waits("worker 1", "")
        await until(client, lambda stats: not stats.launcher.pending)


async def test_a_scheduler_that_was_away_hears_it_again() -> None:
    async with reporting() as (launcher, scheduler, _):
        await scheduler.kill()
        launcher.supervisor.waits("worker 0", "it is started again after 1 s")
        async with restarted(scheduler) as another, SchedulerClient(another.address) as client:
            await client.stub.GetStats(stats_pb2.GetStatsRequest(), wait_for_ready=True)
            state = await until(client, lambda stats: stats.launcher.pending)
            assert (state.num_workers, len(state.pending)) == (2, 1)


async def test_a_second_launcher_is_kept_out_while_the_first_is_there() -> None:
    async with reporting() as (_, _, client):
        with pytest.raises(CallRefused, match="another launcher"):
            await client.answer(client.stub.ReportLauncher())
        assert (await client.stats()).launcher.num_workers == 2

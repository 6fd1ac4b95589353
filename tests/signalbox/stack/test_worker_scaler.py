"""The number of workers changes as operators ask, and by the load; the launcher is a fake."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import pytest

from protos.scheduler.v1 import scheduler_pb2, stats_pb2
from scheduler_svc.config import SchedulerConfig
from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import Refused
from signalbox.settings.worker_range import WorkerRange
from signalbox.stack.autoscaling import CALM_S
from signalbox.stack.worker_scaler import WorkerScaler, least_to_move
from tests.integration.stack import RunningScheduler, restarted, running_scheduler
from tests.ports import free_port
from tests.signalbox.stack.fake_workers import FakeLauncher
from tests.waiting import EVENT_S, eventually, run_ready_tasks


def stats(used: dict[str, int], *, num_waiting: int = 0) -> stats_pb2.GetStatsResponse:
    """Of workers with ten blocks each, by name."""
    return stats_pb2.GetStatsResponse(
        num_requests_waiting=num_waiting,
        workers=[
            stats_pb2.WorkerStats(
                launched_as=name, num_gpu_blocks=10, num_free_gpu_blocks=10 - number
            )
            for name, number in used.items()
        ],
    )


def make_scaler(launcher: FakeLauncher, least: int, most: int) -> WorkerScaler:
    return WorkerScaler(
        launcher.supervisor,
        WorkerRange(least, most),
        placement="local",
        drain_s=7,
        check=refuse_six_more,
        clock=lambda: launcher.now,
    )


def refuse_six_more(number: int, *, num_loaded: int) -> None:
    if number - num_loaded > 5:
        raise MemoryError("start fewer --workers")


def order(least: int, most: int) -> scheduler_pb2.LaunchWorkersResponse:
    return scheduler_pb2.LaunchWorkersResponse(order=5, min_workers=least, max_workers=most)


@pytest.mark.parametrize(
    ("used", "leaves"),
    [
        ({"worker 0": 3, "worker 1": 1, "worker 2": 2}, "worker 1"),
        ({"worker 0": 0, "worker 1": 0, "worker 2": 0}, "worker 2"),
        ({"worker 0": 0, "worker 2": 0}, "worker 1"),  # it does not serve yet
        ({"": 0, "worker 0": 4, "worker 1": 3, "worker 2": 4}, "worker 1"),  # "" is another's
    ],
)
def test_the_worker_with_the_least_to_move_leaves(used: dict[str, int], leaves: str) -> None:
    assert least_to_move(["worker 0", "worker 1", "worker 2"], stats(used)) == leaves


async def test_an_order_adds_workers_and_drains_those_with_the_least_to_move() -> None:
    launcher = FakeLauncher()
    await launcher.grown(2)
    scaler = make_scaler(launcher, 2, 2)
    answer = await scaler.obey(order(4, 4), stats({}))
    assert (answer.order, answer.refusal, answer.state.num_wanted) == (5, "", 4)
    await run_ready_tasks()
    assert launcher.running == ["worker 0", "worker 1", "worker 2", "worker 3"]
    used = {"worker 0": 1, "worker 1": 4, "worker 2": 2, "worker 3": 5}
    answer = await scaler.obey(order(2, 2), stats(used))
    assert answer.state.num_wanted == 2
    await run_ready_tasks()
    assert launcher.running == ["worker 1", "worker 3"]
    assert launcher.workers[0].told == launcher.workers[2].told == ["end within 7 s"]
    await launcher.stop()


async def test_bounds_leave_the_number_alone_if_it_is_within() -> None:
    launcher = FakeLauncher()
    await launcher.grown(3)
    scaler = make_scaler(launcher, 3, 3)
    answer = await scaler.obey(order(1, 5), stats({}))
    assert (answer.state.min_workers, answer.state.max_workers) == (1, 5)
    assert answer.state.num_wanted == 3
    await launcher.stop()


async def test_what_does_not_fit_is_refused_and_changes_nothing() -> None:
    launcher = FakeLauncher()
    await launcher.grown(2)
    scaler = make_scaler(launcher, 2, 2)
    answer = await scaler.obey(order(8, 8), stats({"worker 0": 1, "of another": 0}))
    assert answer.refusal == "cannot keep 8 workers: start fewer --workers"
    assert answer.state.num_wanted == 2
    assert scaler.bounds == (2, 2)
    await launcher.stop()


async def test_workers_that_serve_have_taken_their_memory() -> None:
    launcher = FakeLauncher()
    await launcher.grown(3)
    scaler = make_scaler(launcher, 3, 3)
    answer = await scaler.obey(order(8, 8), stats(dict.fromkeys(launcher.running, 1)))
    assert (answer.refusal, answer.state.num_wanted) == ("", 8)
    await launcher.stop()


async def test_the_number_follows_the_load_within_the_bounds() -> None:
    launcher = FakeLauncher()
    await launcher.grown(1)
    scaler = make_scaler(launcher, 1, 3)
    launcher.now += 20
    scaler.follow(stats({"worker 0": 5}, num_waiting=20))
    await run_ready_tasks()
    assert launcher.running == ["worker 0", "worker 1", "worker 2"]
    busy = {"worker 0": 9, "worker 1": 9, "worker 2": 0}
    for _ in range(int(CALM_S)):
        launcher.now += 1
        scaler.follow(stats(busy))
    assert launcher.supervisor.wanted == 3  # 1.8 workers full of blocks need 3 at 80 %
    calm = {"worker 0": 2, "worker 1": 1, "worker 2": 3}
    for _ in range(int(CALM_S) + 1):
        launcher.now += 1
        scaler.follow(stats(calm))
    assert launcher.supervisor.names == ["worker 0", "worker 2"]
    for _ in range(int(CALM_S)):
        launcher.now += 1
        scaler.follow(stats({"worker 0": 2, "worker 2": 1}))
    assert launcher.supervisor.names == ["worker 0"]
    await launcher.stop()


async def until(
    client: SchedulerClient, condition: Callable[[stats_pb2.GetStatsResponse], object]
) -> stats_pb2.GetStatsResponse:
    """Returns the first answer for which the condition holds."""
    async with asyncio.timeout(EVENT_S):
        while not condition(found := await client.stats()):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def connected(
    launcher: FakeLauncher, bounds: Iterable[int] = (1, 1)
) -> AsyncIterator[tuple[RunningScheduler, SchedulerClient]]:
    """A scheduler that the launcher's stream is open to, and an operator's client."""
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        SchedulerClient(scheduler.address) as own,
        SchedulerClient(scheduler.address) as client,
    ):
        task = asyncio.create_task(make_scaler(launcher, *bounds).run(own))
        try:
            await until(client, lambda stats: stats.HasField("launcher"))
            yield scheduler, client
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


async def test_an_operator_scales_through_the_scheduler() -> None:
    launcher = FakeLauncher()
    await launcher.grown(1)
    async with connected(launcher) as (_, client):
        state = await client.scale(3, 3)
        assert (state.placement, state.num_wanted) == ("local", 3)
        await eventually(lambda: len(launcher.running) == 3)
        with pytest.raises(Refused, match="cannot keep 9 workers: start fewer --workers"):
            await client.scale(9, 9)
        with pytest.raises(Refused, match=r"min_workers: .*; given: '3\.\.2'"):
            await client.scale(3, 2)
        launcher.supervisor.waits("worker 2", "Ray has no room")
        pending = (await until(client, lambda stats: stats.launcher.pending)).launcher.pending
        assert [(one.name, one.reason) for one in pending] == [("worker 2", "Ray has no room")]
        assert (await client.scale(1, 1)).num_wanted == 1
        await eventually(lambda: len(launcher.running) == 1)
    await launcher.stop()


async def test_an_operator_scales_after_the_scheduler_was_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launcher = FakeLauncher()
    await launcher.grown(1)
    num_tries = 0

    async with (
        running_scheduler(SchedulerConfig(port=free_port())) as scheduler,
        SchedulerClient(scheduler.address) as own,
    ):
        await scheduler.kill()
        launch = own.stub.LaunchWorkers

        def counted() -> object:
            nonlocal num_tries
            num_tries += 1
            return launch()

        monkeypatch.setattr(own.stub, "LaunchWorkers", counted)
        task = asyncio.create_task(make_scaler(launcher, 1, 1).run(own))
        await eventually(lambda: num_tries == 2 or task.done())
        assert not task.done()
        async with (
            restarted(scheduler) as another,
            SchedulerClient(another.address) as client,
        ):
            await client.stub.GetStats(stats_pb2.GetStatsRequest(), wait_for_ready=True)
            await until(client, lambda stats: stats.HasField("launcher"))
            assert (await client.scale(2, 2)).num_wanted == 2
        assert not task.done()
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    await launcher.stop()


async def test_a_second_launcher_is_kept_out() -> None:
    launcher = FakeLauncher()
    await launcher.grown(1)
    async with connected(launcher) as (_, client):
        with pytest.raises(Refused, match="another launcher"):
            async for _order in client.answers(client.stub.LaunchWorkers()):
                pass
        assert (await client.stats()).launcher.num_wanted == 1
    await launcher.stop()


async def test_workers_that_others_started_are_refused_by_name() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        SchedulerClient(scheduler.address) as client,
    ):
        with pytest.raises(Refused, match="no launcher keeps the workers of this scheduler: it ha"):
            await client.scale(2, 2)
        assert not (await client.stats()).HasField("launcher")

"""What the scheduler says of workers that start."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from signalbox_contract.errors import Aborted, InvalidArgument, ResourceExhausted
from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.service import registry_servicer, startup_servicer
from signalbox_scheduler.service.registry_servicer import WorkerRegistryServicer
from signalbox_scheduler.workers import starting_workers
from signalbox_scheduler.workers.adapters.cluster_adapters import ClusterAdapters
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.starting_workers import StartingWorkers
from tests.clock import Clock
from tests.waiting import run_ready_tasks


def test_the_worker_that_has_come_furthest_is_described() -> None:
    clock = Clock(100.0)
    starting = StartingWorkers(clock)
    assert starting.describe() == ""
    first = starting.add(StartupProgress(StartupPhase.COMPILE, 1, 13))
    clock.now += 5
    starting.update(first, StartupProgress(StartupPhase.COMPILE, 2, 13))
    assert starting.describe() == "a worker is compiling the CPU kernels, 2 of 13 (5 s)"
    second = starting.add(StartupProgress(StartupPhase.IMPORT))
    starting.update(first, StartupProgress(StartupPhase.LOAD))
    clock.now += 1
    assert starting.describe() == "2 workers start; the first is loading the weights (1 s)"
    starting.remove(first)
    assert starting.describe() == "a worker is importing PyTorch (1 s)"
    starting.remove(second)
    assert starting.describe() == ""


def make_servicer() -> tuple[WorkerRegistryServicer, StartingWorkers]:
    config = SchedulerConfig(port=0)
    cluster = Cluster()
    adapters = ClusterAdapters(cluster)
    servicer = WorkerRegistryServicer(cluster, config, adapters=adapters)
    return servicer, cluster.starting_workers


async def reports(*requests: pb.ReportStartupRequest) -> AsyncIterator[pb.ReportStartupRequest]:
    for request in requests:
        yield request


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({}, "phase"),
        ({"phase": 99}, "phase"),
        ({"phase": 4, "num_done": 2, "num_total": 1}, "num_done"),
    ],
)
async def test_a_report_that_makes_no_sense_is_refused(fields: dict[str, Any], named: str) -> None:
    servicer, starting = make_servicer()
    good = pb.ReportStartupRequest(phase=pb.STARTUP_PHASE_LOAD)
    bad = pb.ReportStartupRequest(**fields)
    with pytest.raises(InvalidArgument, match=named):
        await servicer.ReportStartup(reports(good, bad), None)  # type: ignore[arg-type]
    assert starting.describe() == ""


async def test_a_worker_that_falls_silent_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startup_servicer, "STARTUP_SILENCE_S", 0.05)
    servicer, starting = make_servicer()

    async def silent() -> AsyncIterator[pb.ReportStartupRequest]:
        yield pb.ReportStartupRequest(phase=pb.STARTUP_PHASE_FETCH)
        await asyncio.Event().wait()

    with pytest.raises(Aborted, match="no report within"):
        await servicer.ReportStartup(silent(), None)  # type: ignore[arg-type]
    assert starting.describe() == ""


async def test_streams_of_reports_are_bounded_also_those_without_a_report(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(starting_workers, "MAX_REPORTS", 3)
    servicer, starting = make_servicer()

    async def mute() -> AsyncIterator[pb.ReportStartupRequest]:
        await asyncio.Event().wait()
        yield pb.ReportStartupRequest()

    def report() -> asyncio.Future[Any]:
        return asyncio.ensure_future(servicer.ReportStartup(mute(), None))  # type: ignore[arg-type]

    opened = [report() for _ in range(3)]
    await run_ready_tasks()
    with pytest.raises(ResourceExhausted, match="3 workers report"):
        await report()
    opened[0].cancel()
    await run_ready_tasks()
    again = report()
    await run_ready_tasks()
    assert not again.done()
    for one in (again, *opened):
        one.cancel()
    await run_ready_tasks()
    with starting.reporting(), starting.reporting(), starting.reporting():
        pass  # every place has come back


async def test_a_worker_that_does_not_say_who_it_is_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_servicer, "JOIN_S", 0.05)
    servicer, _ = make_servicer()

    async def mute() -> AsyncIterator[pb.RegisterRequest]:
        await asyncio.Event().wait()
        yield pb.RegisterRequest()

    with pytest.raises(Aborted, match="no join within"):
        await anext(servicer.Register(mute(), None))  # type: ignore[arg-type,call-overload]

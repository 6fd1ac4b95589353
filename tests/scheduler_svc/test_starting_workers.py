"""What the scheduler says of workers that start."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from protos.scheduler.v1 import scheduler_pb2 as pb
from rpc.errors import Aborted, InvalidArgument
from rpc.startup import StartupPhase, StartupProgress
from scheduler_svc import registry_servicer
from scheduler_svc.cluster import Cluster
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.registry_servicer import WorkerRegistryServicer
from scheduler_svc.starting_workers import StartingWorkers


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_worker_that_has_come_furthest_is_described() -> None:
    clock = Clock()
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
    starting = StartingWorkers()
    config = SchedulerConfig(port=0)
    return WorkerRegistryServicer(Cluster(), config, starting=starting), starting


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
    monkeypatch.setattr(registry_servicer, "STARTUP_SILENCE_S", 0.05)
    servicer, starting = make_servicer()

    async def silent() -> AsyncIterator[pb.ReportStartupRequest]:
        yield pb.ReportStartupRequest(phase=pb.STARTUP_PHASE_FETCH)
        await asyncio.Event().wait()

    with pytest.raises(Aborted, match="no report within"):
        await servicer.ReportStartup(silent(), None)  # type: ignore[arg-type]
    assert starting.describe() == ""

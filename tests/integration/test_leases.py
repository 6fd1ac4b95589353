"""Leases outlast what is no silence of the peer, and say why they ended."""

import asyncio
import time

import pytest

from gpu_worker.scheduler_client import Registration
from scheduler_svc.config import SchedulerConfig
from tests.integration.stack import eventually, running_scheduler, running_worker, simulated


async def test_a_pause_of_the_process_costs_no_lease() -> None:
    config = SchedulerConfig(port=0, heartbeat_interval_s=0.1, lease_s=1.0)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, simulated()),
    ):
        await eventually(lambda: len(scheduler.cluster.engines) == 1)
        engine = scheduler.cluster.engines[0]
        time.sleep(1.5)  # noqa: ASYNC251 (both sides stand still, as on a machine that others load)
        await asyncio.sleep(1.0)
        assert scheduler.cluster.engines == [engine]


async def test_the_log_says_why_a_worker_was_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def be_silent(*_: object) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Registration, "_beat", be_silent)
    config = SchedulerConfig(port=0, heartbeat_interval_s=0.25, lease_s=0.5)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, simulated()),
    ):
        await eventually(lambda: "is lost: no heartbeat within 0.5 s" in caplog.text)

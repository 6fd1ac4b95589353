"""Leases outlast what is no silence of the peer, and say why they ended."""

import asyncio
import logging
import re
import threading
import time

import pytest

from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.workers.engine import lease_client
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.registration_client import Registration
from signalbox_worker.service.worker import NO_EPOCH
from tests.chaos.fault_proxy import FaultProxy, fault_proxy
from tests.integration.stack import running_scheduler, running_worker, simulated
from tests.waiting import eventually


async def test_a_pause_of_the_process_costs_no_lease() -> None:
    config = SchedulerConfig(port=0, heartbeat_interval_s=0.1, lease_s=1.0)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, simulated()),
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        step_loop = scheduler.cluster.step_loops[0]
        time.sleep(1.5)  # noqa: ASYNC251 (both sides stand still, as on a machine that others load)
        await asyncio.sleep(1.0)
        assert scheduler.cluster.step_loops == [step_loop]


async def test_a_connection_that_stands_still_for_less_than_the_lease_costs_none(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As on a crowded machine: gRPC's own pings must not be less patient than the lease."""
    config = SchedulerConfig(port=0, heartbeat_interval_s=5.0, lease_s=60)
    async with (
        running_scheduler(config) as scheduler,
        fault_proxy(scheduler.server.port) as registrations,
        running_worker(registrations.address, simulated()),
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        step_loop = scheduler.cluster.step_loops[0]
        await asyncio.sleep(0.1)  # the first heartbeat and its answer
        registrations.freeze()
        await asyncio.sleep(4.0)
        registrations.thaw()
        await asyncio.sleep(0.5)
        assert scheduler.cluster.step_loops == [step_loop]
    assert "worker lost" not in caplog.text


async def test_a_step_stream_that_stands_still_costs_no_lease_while_heartbeats_arrive(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """As of a worker that has no processor for a while."""
    async with (
        fault_proxy(0) as steps,
        running_scheduler(SchedulerConfig(port=0, lease_s=60)) as scheduler,
        running_worker(scheduler.address, simulated(), behind=steps),
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        step_loop = scheduler.cluster.step_loops[0]
        steps.freeze()
        await asyncio.sleep(4.0)
        steps.thaw()
        await asyncio.sleep(0.5)
        assert scheduler.cluster.step_loops == [step_loop]
    assert "opening it again" not in caplog.text


async def test_breaks_with_time_between_cost_an_idle_worker_no_lease(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(lease_client, "RECONNECT_INTERVAL_S", 0.2)
    caplog.set_level(logging.INFO)
    proxy = FaultProxy(target=0)
    await proxy.start()
    async with (
        running_scheduler(SchedulerConfig(port=0, lease_s=60)) as scheduler,
        running_worker(scheduler.address, simulated(), behind=proxy),
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        step_loop = scheduler.cluster.step_loops[0]
        for num_breaks in (1, 2, 3):
            proxy.cut()
            await eventually(lambda n=num_breaks: caplog.text.count("opening it again") == n)  # type: ignore[misc]
            await asyncio.sleep(0.5)
        assert scheduler.cluster.step_loops == [step_loop]
    breaks = [record for record in caplog.records if "opening it again" in record.getMessage()]
    assert {record.levelname for record in breaks} == {"INFO"}, "as after a drain"
    await proxy.close()


async def test_a_worker_that_hangs_keeps_no_other_from_joining() -> None:
    goes_on = threading.Event()

    class Hung(SimulatedRunner):
        def init_cache_engine(self, *, num_gpu_blocks: int, num_cpu_blocks: int) -> None:
            goes_on.wait()

    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, lambda: Hung(SimulatedConfig())) as hung,
    ):
        try:
            await eventually(lambda: hung.worker.epoch != NO_EPOCH)
            await asyncio.sleep(0.3)  # it is being admitted
            async with running_worker(scheduler.address, simulated()):
                await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        finally:
            goes_on.set()


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
        await eventually(
            lambda: re.search(r"worker lost: \S+, no heartbeat within 0.5 s", caplog.text)
        )

"""Idle workers audit answers, of each other where they can, and a recording repeats it."""

import math
from pathlib import Path

import pytest

from signalbox_scheduler.audits import choice, pace
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    assert_idle,
    assert_replays,
    router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.waiting import eventually

NUM_REQUESTS = 6


@pytest.mark.parametrize("num_workers", [1, 2])
async def test_answers_are_audited_and_equal(
    num_workers: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choice, "CHANCE", 1.0)
    monkeypatch.setattr(pace, "MAX_STEP_S", math.inf)  # however busy the machine is
    recording = tmp_path / "recording"
    config = SchedulerConfig(port=0, audit_cpu=1.0, recording_path=str(recording))
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, simulated()),
        running_worker(scheduler.address, simulated()) as other,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 2)
        if num_workers == 1:
            await other.kill()
            await until_workers(scheduler, 1)
        for handle in range(NUM_REQUESTS):
            await client.add(handle, [1 + handle] * 40, max_tokens=9, num_sequences=2)
        await client.ended(*range(NUM_REQUESTS))
        log = scheduler.cluster.audits.log
        await eventually(lambda: log.num_equal == NUM_REQUESTS)
        assert not log.num_different
        assert not log.num_dropped
        assert log.num_tokens == NUM_REQUESTS * 2 * 9
        await assert_idle(scheduler)
    assert_replays(recording)

"""A worker's steps stay within its capacity and within the settings."""

from dataclasses import replace

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import WorkerCapacity
from signalbox_scheduler.config import SchedulingSettings, StepLimits

CAPACITY = WorkerCapacity(
    block_size=16,
    num_gpu_blocks=8,
    num_cpu_blocks=0,
    block_bytes=32,
    max_num_seqs=32,
    max_num_batched_tokens=512,
    max_steps_in_flight=2,
)
STATES = (FULL_GROUP, CacheGroup(kind="state", state_blocks=2))


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, StepLimits(max_num_seqs=32, max_num_batched_tokens=512, prefill_spread_steps=16)),
        (
            {"max_num_seqs": 8, "max_num_batched_tokens": 64, "max_steps_in_flight": 1},
            StepLimits(
                max_num_seqs=8, max_num_batched_tokens=64, prefill_spread_steps=16, max_in_flight=1
            ),
        ),
        (
            {"max_num_seqs": 999, "max_num_batched_tokens": 9999, "prefill_spread_steps": 1},
            StepLimits(max_num_seqs=32, max_num_batched_tokens=512),
        ),
    ],
)
def test_the_smaller_of_capacity_and_settings_is_the_limit(
    settings: dict[str, int], expected: StepLimits
) -> None:
    assert SchedulingSettings(**settings).step_limits(CAPACITY) == expected


def test_a_worker_that_takes_one_step_at_a_time_gets_no_second() -> None:
    one = replace(CAPACITY, max_steps_in_flight=1)
    assert SchedulingSettings().step_limits(one).max_in_flight == 1


@pytest.mark.parametrize(
    ("capacity", "most"),
    [
        (CAPACITY, 0),
        (replace(CAPACITY, max_draft_tokens=7), 7),
        (replace(CAPACITY, max_draft_tokens=7, groups=STATES), 7),
        (replace(CAPACITY, max_draft_tokens=7, pipeline_parallel_size=2), 0),
    ],
)
def test_drafts_are_those_of_a_worker_without_stages(capacity: WorkerCapacity, most: int) -> None:
    assert SchedulingSettings().step_limits(capacity).max_draft_tokens == most

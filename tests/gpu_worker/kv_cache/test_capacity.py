"""What the measurement of a start runs, and what it makes of it."""

from collections.abc import Callable

import pytest

from contract.model import WorkerCapacity
from gpu_worker.batch.batch import Batch
from gpu_worker.config import CacheConfig
from gpu_worker.kv_cache.capacity import measure_capacity
from gpu_worker.kv_cache.measured_device import HostDevice

BYTES_PER_TOKEN = 1000
SECONDS_PER_TOKEN = 0.25


class MeasuredHost(HostDevice):
    """A CPU on which a step takes as much memory and time as it has tokens."""

    def __init__(self) -> None:
        self.steps: list[Batch] = []

    def execute(self, batch: Batch) -> None:
        self.steps.append(batch)

    def peak_growth(self, work: Callable[[], object]) -> int:
        work()
        return BYTES_PER_TOKEN * len(self.steps[-1].token_ids)

    def seconds(self, work: Callable[[], object]) -> float:
        work()
        return SECONDS_PER_TOKEN * len(self.steps[-1].token_ids)

    def copy_bytes_per_s(self) -> float:
        return 1.0


def measure(device: MeasuredHost, *, step_divisor: int) -> WorkerCapacity:
    return measure_capacity(
        cache_config=CacheConfig(max_num_batched_tokens=512, max_num_seqs=16),
        block_size=16,
        max_model_len=4096,
        block_bytes=1,
        device=device,
        execute=device.execute,
        step_divisor=step_divisor,
    )


@pytest.mark.parametrize("divisor", [1, 8])
def test_a_part_of_the_largest_step_says_what_the_whole_takes(divisor: int) -> None:
    device = MeasuredHost()
    capacity = measure(device, step_divisor=divisor)
    (step,) = device.steps
    assert len(step.token_ids) == 512 // divisor
    assert len(step.context_lens) == 16 // divisor
    assert capacity.activations_bytes == 512 * BYTES_PER_TOKEN
    assert capacity.prefill_tokens_per_s == 1 / SECONDS_PER_TOKEN
    assert (capacity.max_num_batched_tokens, capacity.max_num_seqs) == (512, 16)

"""What the measurement of a start runs, and what it makes of it."""

import itertools
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from signalbox_contract.cache_groups import FULL_GROUP, STATE, CacheGroup
from signalbox_contract.model import WorkerCapacity
from signalbox_worker.batch.batch import Batch
from signalbox_worker.config import GIB, CacheConfig
from signalbox_worker.kv.cache import capacity as capacity_module
from signalbox_worker.kv.cache.capacity import WHOLE, Footprint, RankShare, measure_capacity
from signalbox_worker.kv.cache.measured_device import HostDevice

BYTES_PER_TOKEN = 1000
SECONDS_PER_TOKEN = 0.25


class MeasuredHost(HostDevice):
    """A CPU on which a step takes as much memory and time as it has tokens."""

    def __init__(self, swap_limit: int | None = None) -> None:
        self.steps: list[Batch] = []
        self.swap_limit = swap_limit

    def swap_bytes(self, wanted: int) -> int:
        return wanted if self.swap_limit is None else min(wanted, self.swap_limit)

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


def measure(
    device: MeasuredHost,
    *,
    share: RankShare = WHOLE,
    swap_space: float | None = None,
    kv_cache_memory: float | None = None,
    **model: Any,
) -> WorkerCapacity:
    return measure_capacity(
        CacheConfig(
            max_num_batched_tokens=512,
            max_num_seqs=16,
            swap_space=swap_space,
            kv_cache_memory=kv_cache_memory,
        ),
        Footprint(block_size=16, block_bytes=1, max_model_len=4096, **model),
        device,
        device.execute,
        share=share,
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


@pytest.mark.parametrize(("max_draft_tokens", "num_draws"), [(0, 16), (3, 64), (64, 256)])
def test_the_largest_step_draws_behind_drafts(max_draft_tokens: int, num_draws: int) -> None:
    device = MeasuredHost()
    capacity = measure(device, step_divisor=8, max_draft_tokens=max_draft_tokens)
    assert capacity.max_draft_tokens == max_draft_tokens
    (step,) = device.steps
    assert len(step.rows) == num_draws // 8
    assert (np.diff(step.rows.token_index) > 0).all()
    assert set(step.query_start[1:] - 1) <= set(step.rows.token_index)


def test_swap_space_that_cannot_be_pinned_becomes_smaller(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert measure(MeasuredHost(swap_limit=100)).num_cpu_blocks == 100
    assert "of swap space cannot be pinned" in caplog.text


def test_swap_space_that_was_asked_for_is_not_made_smaller() -> None:
    assert measure(MeasuredHost(), swap_space=0.5).num_cpu_blocks == 16 * 4096 // 16
    with pytest.raises(MemoryError, match=r"cannot be pinned.*lower swap_space"):
        measure(MeasuredHost(swap_limit=100), swap_space=0.5)


def test_no_more_sequences_run_than_two_states_of_each_fit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    groups = (FULL_GROUP, CacheGroup(kind=STATE, state_blocks=7))

    def num_seqs(num_blocks: int, groups: tuple[CacheGroup, ...] = groups) -> int:
        memory = num_blocks / GIB
        return measure(MeasuredHost(), kv_cache_memory=memory, groups=groups).max_num_seqs

    assert num_seqs(16 * 15) == 16
    assert not caplog.text
    assert num_seqs(16 * 15 - 1) == 15
    assert "max_num_seqs is 15, not 16: a sequence takes 15 KV blocks or more" in caplog.text
    assert num_seqs(15) == 1
    with pytest.raises(MemoryError, match="for the 15 KV blocks of one sequence: it takes 15 byt"):
        num_seqs(14)
    assert num_seqs(14, (FULL_GROUP,)) == 16  # blocks that grow with a sequence are preempted


def test_a_cache_that_does_not_fit_beside_the_adapters_of_all_ranks_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    device, mib = MeasuredHost(), 1 << 20
    monkeypatch.setattr(capacity_module, "available_ram", lambda: 100 * mib)
    of_two = RankShare(cache=0.5, local_size=2)
    beside_none = measure(device, share=of_two, swap_space=0.0)
    beside_some = measure(device, share=of_two, swap_space=0.0, adapters_bytes=20 * mib)
    assert beside_none.num_gpu_blocks == beside_some.num_gpu_blocks  # what all sequences can use
    with pytest.raises(MemoryError, match=r"beside 50 MiB for adapters; .* lower max_cpu_loras"):
        measure(device, share=of_two, swap_space=0.0, adapters_bytes=50 * mib)
    with pytest.raises(MemoryError, match=r"beside 50 MiB for drafts"):
        measure(device, share=of_two, swap_space=0.0, drafts_bytes=50 * mib)


def test_copies_are_as_fast_where_the_processor_is_often_another_process_s(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = itertools.count()
    monkeypatch.setattr(time, "perf_counter", lambda: float(next(looks)))  # a second for each copy
    assert HostDevice().copy_bytes_per_s() > 1e8

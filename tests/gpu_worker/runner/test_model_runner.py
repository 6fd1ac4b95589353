"""The runner as the worker sees it: capacity, pools, failures that stay alone."""

import mmap
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_worker.batch.largest_batch import largest_batch
from signalbox_worker.config import GIB, CacheConfig, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.device.ram import available_ram
from signalbox_worker.kv.cache import capacity
from signalbox_worker.kv.cache.cache_engine import CacheEngine
from signalbox_worker.kv.cache.measured_device import HostDevice
from signalbox_worker.models.layers import ParallelGroup
from signalbox_worker.runner.loading import loaded_model
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.runner.ranks import rank_shard
from signalbox_worker.runner.ranks.rank_shard import load_shard
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service import runner_factory
from tests.gpu_worker.generation import Generated, make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.tiny_models import VOCAB

MIB = 1 << 20


def make_swapping_runner(path: Path, **options: Any) -> LocalRunner:
    options = {"max_num_seqs": 8, "swap_space": MIB / GIB, "num_gpu_blocks": 64} | options
    return make_runner(path, **options)


def make_sequences(*lengths: int) -> list[Generated]:
    return [
        make_sequence(prompt, range(8 * i + 1, 8 * i + 9))
        for i, prompt in enumerate(make_prompts(*lengths))
    ]


def test_runner_says_what_it_serves(tiny: Path) -> None:
    runner: Runner = make_swapping_runner(tiny)
    info = runner.model
    assert (info.name, info.architecture) == (tiny.name, "LlamaForCausalLM")
    assert (info.dtype, info.vocab_size, info.max_model_len) == ("float32", VOCAB, 256)
    assert info.eos_token_ids == (2,)


def test_profile_measures_and_never_offers_more_than_can_be_used(tiny: Path) -> None:
    runner = make_swapping_runner(tiny)
    found = runner.profile()
    assert found.block_bytes == 3 * 2 * 2 * 16 * 8 * 4
    assert found.num_gpu_blocks == 8 * (256 // 16)
    assert found.num_cpu_blocks == found.num_gpu_blocks
    assert found.max_num_batched_tokens == 512


def test_sizes_in_bytes_decide_the_pools(tiny: Path) -> None:
    found = make_swapping_runner(
        tiny, kv_cache_memory=100_000 / GIB, swap_space=50_000 / GIB
    ).profile()
    assert found.num_gpu_blocks == 100_000 // found.block_bytes
    assert found.num_cpu_blocks == 50_000 // found.block_bytes


@pytest.mark.parametrize(
    ("free", "others", "left"),
    [
        (70, 0, 90 - 30 - 5),  # 30 of weights
        (40, 30, 40 - 5),  # somebody else's 30 leave less free than the share
        (70, 30, 70 - 5),  # nothing of ours yet
        (8, 0, 0),
        (4, 90, 0),
    ],
)
def test_the_share_of_a_device_is_counted_without_others_and_never_above_what_is_free(
    free: int, others: int, left: int
) -> None:
    found = capacity.share_left(free=free, total=100, others=others, utilization=0.9, reserved=5)
    assert found == left


def test_too_little_memory_for_one_block_is_one_clear_line(tiny: Path) -> None:
    with pytest.raises(MemoryError, match=r"one KV block: it takes 6144 bytes.*kv_cache_memory"):
        make_swapping_runner(tiny, kv_cache_memory=1000 / GIB).profile()


def test_pools_larger_than_free_ram_are_refused(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "available_ram", lambda: MIB)
    with pytest.raises(MemoryError, match="lower swap_space or kv_cache_memory"):
        make_swapping_runner(tiny, kv_cache_memory=8 * MIB / GIB).profile()


@pytest.mark.parametrize("max_model_len", [4, 20, 1000])
def test_largest_batch_is_as_large_as_can_be(max_model_len: int) -> None:
    batch = largest_batch(num_tokens=64, num_seqs=7, max_model_len=max_model_len, block_size=16)
    assert len(batch.token_ids) == min(64, 7 * max_model_len)
    assert len(batch.rows.token_index) == 7
    assert batch.context_lens.max() <= max_model_len
    assert batch.positions.max() < max_model_len


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you"),
    ],
)
def test_a_step_without_memory_says_so(
    tiny: Path, error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise error

    runner = make_swapping_runner(tiny)
    batch = make_batch([(make_sequences(3)[0], 3)], block_size=16)
    monkeypatch.setattr(runner.executor, "_execute", fail)
    with pytest.raises(MemoryError, match="memory"):
        runner.execute(batch)
    with pytest.raises(MemoryError, match="lower max_num_batched_tokens"):
        runner.profile()


def test_new_cache_engine_forgets_the_old_one(tiny: Path) -> None:
    runner = make_swapping_runner(tiny)
    runner.execute(make_batch([(make_sequences(20)[0], 20)], block_size=16))
    assert runner.pools.gpu_pool.any()
    runner.init_cache_engine(num_gpu_blocks=10, num_cpu_blocks=0)
    assert runner.pools.gpu_pool.shape[0] == 10
    assert not runner.pools.gpu_pool.any()


def test_pools_that_there_is_no_memory_for_say_why(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(**_: object) -> CacheEngine:
        raise MemoryError("CUDA cannot pin 7 MiB of RAM")

    runner = make_swapping_runner(tiny)
    monkeypatch.setattr("signalbox_worker.runner.executors.torch_executor.CacheEngine", make)
    with pytest.raises(MemoryError, match=r"lower .*swap_space \(CUDA cannot pin 7 MiB"):
        runner.init_cache_engine(num_gpu_blocks=1, num_cpu_blocks=1)


def test_the_old_pool_is_gone_before_a_new_one_comes(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A card has no room for two."""
    runner = make_swapping_runner(tiny)
    old = weakref.ref(runner.pools.gpu_pool)
    is_gone: list[bool] = []

    def make(**arguments: object) -> CacheEngine:
        is_gone.append(old() is None)
        return CacheEngine(**arguments)  # type: ignore[arg-type]

    monkeypatch.setattr("signalbox_worker.runner.executors.torch_executor.CacheEngine", make)
    runner.init_cache_engine(num_gpu_blocks=32, num_cpu_blocks=0)
    assert is_gone == [True]


def test_execute_before_init_cache_engine_is_refused(tiny: Path) -> None:
    runner = runner_factory.make_runner(RunnerConfig(model=ModelConfig(model=str(tiny))))
    with pytest.raises(RuntimeError, match="init_cache_engine comes first"):
        runner.execute(make_batch([(make_sequences(3)[0], 3)], block_size=16))


def test_max_model_len_can_only_be_lowered(tiny: Path) -> None:
    assert make_runner(tiny, max_model_len=100).model.max_model_len == 100
    with pytest.raises(ModelError, match=r"max_model_len is 257; .* allows at most 256"):
        make_runner(tiny, max_model_len=257)


def test_parallel_size_without_a_group_is_refused(tiny: Path) -> None:
    config = RunnerConfig(
        model=ModelConfig(model=str(tiny)), parallel=ParallelConfig(tensor_parallel_size=2)
    )
    with pytest.raises(ValueError, match="ranks have no place to meet at"):
        load_shard(config)


def test_blocks_that_ranks_cannot_run_natively_are_refused_with_the_reason(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_shard, "_meet", lambda start, opened, keys, why_not: why_not)
    monkeypatch.setattr(loaded_model, "join", lambda *_: ParallelGroup(0, 2))
    config = RunnerConfig(
        model=ModelConfig(model=str(tiny), dtype="float32", quantization="int8"),
        parallel=ParallelConfig(tensor_parallel_size=2),
        device=DeviceConfig(device="cpu"),
    )
    message = "'int8', which takes a native program, but head size 8 is no multiple of 16"
    with pytest.raises(ModelError, match=message):
        load_shard(config)


def test_16_bits_are_refused_in_pytorch(tiny: Path) -> None:
    message = "dtype is 'int16', which takes a native program, but cpu_backend is 'torch'"
    with pytest.raises(ModelError, match=message):
        make_runner(tiny, dtype="int16", cpu_backend="torch")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_cuda_without_a_device_is_refused(tiny: Path) -> None:
    with pytest.raises(ValueError, match="PyTorch finds no CUDA device"):
        make_runner(tiny, device="cuda")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ModelConfig(model="m", dtype="int8"), "dtype\n.*'int8'"),
        (lambda: ModelConfig(model="m", max_model_len=0), "max_model_len\n.*greater than 1"),
        (lambda: CacheConfig(block_size=12), "block_size\n.*power of two"),
        (lambda: CacheConfig(swap_space=-1), "swap_space\n"),
        (lambda: CacheConfig(gpu_memory_utilization=1.5), "gpu_memory_utilization\n"),
        (lambda: CacheConfig(gpu_memory_utilization=float("nan")), "gpu_memory_utilization\n"),
        (lambda: CacheConfig(kv_cache_memory=0), "kv_cache_memory\n"),
        (lambda: CacheConfig(max_num_seqs=0), "max_num_seqs\n"),
        (lambda: CacheConfig(max_num_batched_tokens=8), "max_num_batched_tokens is 8"),
        (lambda: DeviceConfig(device="tpu"), "device\n"),
        (lambda: DeviceConfig(num_threads=0), "num_threads\n"),
    ],
)
def test_bad_configuration_is_named(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


def test_unknown_attention_backend_is_named(tiny: Path) -> None:
    with pytest.raises(ValueError, match="backend is 'magic'; there are auto, flash_attn"):
        make_runner(tiny, attention_backend="magic")


def test_peak_growth_sees_what_is_given_back() -> None:
    def work() -> None:
        with mmap.mmap(-1, 64 * MIB) as fresh:  # an array might get memory that is free already
            fresh.write(b"x" * (64 * MIB))

    assert 48 * MIB < HostDevice().peak_growth(work) < 256 * MIB
    assert available_ram() > 0

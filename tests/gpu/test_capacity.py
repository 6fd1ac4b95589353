"""What a worker announces on a card fits there, and its share of the card is its own."""

from pathlib import Path

import pytest
import torch

from benchmarks.gpu.bench import Bench
from benchmarks.gpu.models import QWEN3_0_6B, write_model
from benchmarks.gpu.steps import make_batch
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.local_runner import LocalRunner
from signalbox_worker.service.runner_factory import make_runner as load_runner

CUDA = torch.device("cuda")


def make_runner(folder: Path, share: float) -> LocalRunner:
    bench = Bench(device=CUDA, tiny=False, folder=folder)
    return load_runner(
        RunnerConfig(
            model=ModelConfig(model=str(write_model(bench, QWEN3_0_6B)), load_format="dummy"),
            cache=CacheConfig(
                max_num_seqs=256, max_num_batched_tokens=8192, gpu_memory_utilization=share
            ),
            device=DeviceConfig(device="cuda"),
        )
    )


@pytest.mark.parametrize("share", [0.3, 0.9])
def test_the_largest_step_runs_beside_the_cache_that_was_announced(
    tmp_path: Path, share: float
) -> None:
    free, total = torch.cuda.mem_get_info()
    if free < 0.9 * total:  # PyTorch's own context takes up to a GiB
        pytest.skip(f"others have {(total - free) >> 20} MiB of the card")
    runner = make_runner(tmp_path, share)
    found = runner.profile()
    assert found.activations_bytes > 0
    assert found.prefill_tokens_per_s > 1000  # compiling kernels is not counted
    runner.init_cache_engine(
        num_gpu_blocks=found.num_gpu_blocks, num_cpu_blocks=min(64, found.num_cpu_blocks)
    )
    batch = make_batch(
        num_seqs=1,
        num_new=8192,
        context=8192,
        num_blocks=found.num_gpu_blocks,
        vocab_size=runner.model.vocab_size,
    )
    runner.execute(batch)
    left, _ = torch.cuda.mem_get_info()
    assert free - left <= (share + 0.02) * total

"""The digest of a fixed computation, of families whose files PyTorch writes, and of ranks."""

from pathlib import Path
from typing import Any

import pytest

from signalbox_worker.device.parallel_config import ParallelConfig
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.runner.ranks.thread_ranks import load_threads, make_start, with_sizes
from tests.gpu_worker.tiny_models import LATENTS, make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("family", "fields"),
    [
        ("gemma2", {}),
        ("lfm2", {}),
        ("granite-hybrid", {}),
        ("qwen3.5-moe", {}),
        ("deepseek-v2", LATENTS),
    ],
)
def test_each_kind_of_layer_is_computed_alike(
    family: str, fields: dict[str, Any], tmp_path: Path
) -> None:
    """Windows, states, experts and latents among them."""
    make_model(tmp_path, family, **fields)
    digests = [
        make_runner(
            tmp_path, cpu_backend="native", block_size=16, num_threads=num_threads
        ).executor.arithmetic(max_num_tokens=64)
        for num_threads in (1, 2)
    ]
    assert digests[0] == digests[1] != ""


@pytest.mark.parametrize("sizes", [(2, 1), (1, 2)])
def test_ranks_have_one_digest_of_all(native_tiny: Path, sizes: tuple[int, int]) -> None:
    start = make_start(native_tiny, ParallelConfig(), cpu_backend="native")
    digests = []
    for tp, pp in (sizes, sizes, (1, 1)):
        runner = load_threads(with_sizes(start, tp, pp))
        try:
            digests.append(runner.profile().arithmetic)
        finally:
            runner.close()
    first, again, alone = digests
    assert first == again
    assert "" != first != alone

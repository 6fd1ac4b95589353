"""States behind drafts that stay, which a step leaves once draws have shown which these are."""

from pathlib import Path

import pytest

from tests.gpu_worker.generation import groups_of
from tests.gpu_worker.runner.executors.native_models import make_native
from tests.gpu_worker.runner.executors.settled_states import Steps, assert_settled
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()


@pytest.mark.parametrize(
    "family",
    [
        *("lfm2", "lfm2-moe", "granite-hybrid", "nemotron-h", "nemotron-h-moe"),
        *("qwen3-next", "qwen3.5", "qwen3.5-moe"),
    ],
)
def test_drafts_leave_the_bits_of_single_steps(family: str, tmp_path: Path) -> None:
    make_model(tmp_path, family)
    runner = make_native(tmp_path, num_threads=3)
    assert_settled(Steps(runner, groups_of(runner), runner.pools.gpu_pool))

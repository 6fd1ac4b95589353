"""Whole steps through the native program: what its tokens do not depend on."""

from pathlib import Path
from typing import Any

import pytest

from gpu_worker.config import DeviceConfig
from gpu_worker.native.native_runner import NativeRunner
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()


def make_native_runner(path: Path, **options: Any) -> NativeRunner:
    return make_runner(path, **{"cpu_backend": "native", "block_size": 16} | options)


def test_bfloat16_tokens_do_not_depend_on_batch_or_chunks(native_tiny: Path) -> None:
    prompts = make_prompts(1, 5, 16, 17, 33, 70, 200)
    runner = make_native_runner(native_tiny, dtype="bfloat16")
    together = Driver(runner=runner).generate(prompts, num_tokens=16)
    assert Driver(runner=runner, chunk=7).generate(prompts, num_tokens=16) == together
    alone = [Driver(runner=runner, chunk=5).generate([p], num_tokens=16)[0] for p in prompts]
    assert alone == together


def test_unknown_backend_is_refused() -> None:
    with pytest.raises(ValueError, match="'auto', 'native' or 'torch'"):
        DeviceConfig(cpu_backend="fast")

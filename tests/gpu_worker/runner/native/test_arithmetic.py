"""The digest of a fixed computation: equal where bits are equal, and another where they differ."""

import re
from pathlib import Path
from typing import Any

import pytest

from signalbox_kernels.native import ISA_VARIABLE
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.tiny_models import make_llama
from tests.native_kernels import available_isas, skip_without_native_kernels

skip_without_native_kernels()


def arithmetic_of(path: Path, **options: Any) -> str:
    options = {"cpu_backend": "native", "block_size": 16} | options
    digest: str = make_runner(path, **options).executor.arithmetic(max_num_tokens=64)
    assert re.fullmatch("[0-9a-f]{64}", digest)
    return digest


def test_starts_with_any_number_of_threads_have_one_digest(native_tiny: Path) -> None:
    first = arithmetic_of(native_tiny, num_threads=1)
    assert arithmetic_of(native_tiny, num_threads=3) == first
    assert arithmetic_of(native_tiny, num_gpu_blocks=7, max_num_seqs=2) == first


def test_the_computation_leaves_nothing_behind(native_tiny: Path) -> None:
    runner = make_runner(native_tiny, cpu_backend="native", block_size=16)
    first = runner.executor.arithmetic(max_num_tokens=64)
    runner.init_cache_engine(num_gpu_blocks=8, num_cpu_blocks=0)
    assert runner.executor.arithmetic(max_num_tokens=64) == first
    runner.init_cache_engine(num_gpu_blocks=8, num_cpu_blocks=0)
    assert not runner.pools.gpu_pool.any()


@pytest.mark.parametrize(
    "options",
    [
        {"kv_cache_dtype": "int8"},
        {"kv_cache_dtype": "fp8"},
        {"kv_cache_dtype": "bfloat16"},
        {"dtype": "bfloat16"},
        {"quantization": "int8"},
        {"quantization": "int4"},
    ],
    ids=str,
)
def test_other_types_have_another_digest(native_tiny: Path, options: dict[str, Any]) -> None:
    assert arithmetic_of(native_tiny, **options) != arithmetic_of(native_tiny)


def test_last_bits_decide(tmp_path: Path, native_tiny: Path) -> None:
    make_llama(tmp_path, rms_norm_eps=1.5e-6)
    assert arithmetic_of(tmp_path) != arithmetic_of(native_tiny)


@pytest.mark.slow
def test_each_instruction_set_has_its_own(
    native_tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests = []
    for isa in (isas := available_isas()):
        monkeypatch.setenv(ISA_VARIABLE, isa.name)
        digests.append(arithmetic_of(native_tiny))
    assert len(set(digests)) == len(isas)


def test_a_model_that_pools_has_none(native_tiny: Path) -> None:
    runner = make_runner(native_tiny, cpu_backend="native", runner="pooling")
    assert runner.executor.arithmetic(max_num_tokens=64) == ""

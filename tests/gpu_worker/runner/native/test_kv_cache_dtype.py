"""K and V of a type of their own: their size, the tokens, what a worker announces of them."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError

from signalbox_contract.model import Numerics
from signalbox_contract.sampling_params import SamplingParams
from signalbox_kernels.native import ISA_VARIABLE, Isa, multiplies_bfloat16
from signalbox_worker.config import CacheConfig
from signalbox_worker.runner.local_runner import LocalRunner
from tests.gpu_worker.generation import Driver, make_batch, make_sequence
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.native_kernels import available_isas, skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()

PROMPTS = make_prompts(1, 5, 16, 17, 33, 70, 200)
PAIRS = [("float32", "bfloat16"), ("bfloat16", "bfloat16"), ("bfloat16", "float32")]
PAIRS += [(dtype, kv_dtype) for dtype in ("float32", "bfloat16") for kv_dtype in ("int8", "fp8")]

# Rounding moves an entry of K or V by 2^-9 of it at most. A score, below 4 here, moves by as much
# of itself, so that the weights of two keys move apart by 8 * 2^-9 of themselves, and a mean of V
# by that and its own 2^-9. The three layers pass these on side by side to logits that are scalar
# products of 48 entries of magnitude 1 with weights of 0.16, whose errors have either sign.
# E4M3 moves it by 2^-4 of it, and a whole number by 1/254 of the head's largest, which is at most
# four times their usual size.
ROUNDED_LOGITS = {
    kv_dtype: 3 * 9 * unit * 48**0.5 * 0.16
    for kv_dtype, unit in {"bfloat16": 2.0**-9, "int8": 2.0**-6, "fp8": 2.0**-4}.items()
}


def make_native_runner(path: Path, **options: Any) -> LocalRunner:
    return make_runner(path, **{"cpu_backend": "native", "block_size": 16} | options)


def logits_of(runner: LocalRunner) -> np.ndarray:
    """Returns [3, vocab] of the last tokens of three prompts, computed in chunks."""
    wanted = SamplingParams(num_logprobs=1)
    sequences = [
        make_sequence(prompt, range(13 * i, 13 * i + 13), wanted)
        for i, prompt in enumerate(make_prompts(9, 40, 200))
    ]
    for count in (8, 31, 160):
        chunks = [(s, min(count, s.num_left - 1)) for s in sequences if s.num_left > 1]
        runner.execute(make_batch(chunks, block_size=16))
        for sequence, done in chunks:
            sequence.num_computed += done
    runner.execute(make_batch([(s, s.num_left) for s in sequences], block_size=16))
    return runner.executor._logits[:3].copy()


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize(("dtype", "kv_dtype"), PAIRS)
def test_tokens_do_not_depend_on_batch_chunks_or_threads(
    native_tiny: Path, isa: Isa, dtype: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa.name)
    options = {"dtype": dtype, "kv_cache_dtype": kv_dtype}
    runner = make_native_runner(native_tiny, num_threads=2, **options)
    together = Driver(runner=runner).generate(PROMPTS, num_tokens=12)
    assert Driver(runner=runner, chunk=7).generate(PROMPTS, num_tokens=12) == together
    one_thread = make_native_runner(native_tiny, num_threads=1, **options)
    alone = [Driver(runner=one_thread, chunk=5).generate([p], num_tokens=12)[0] for p in PROMPTS]
    assert alone == together


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("kv_dtype", ROUNDED_LOGITS)
def test_logits_over_rounded_k_and_v_are_near_those_of_float32(
    native_tiny: Path, isa: Isa, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa.name)
    exact, rounded = (
        logits_of(make_native_runner(native_tiny, dtype="float32", kv_cache_dtype=each))
        for each in ("float32", kv_dtype)
    )
    assert 0 < np.abs(exact - rounded).max() < ROUNDED_LOGITS[kv_dtype]


def test_bfloat16_takes_half_of_a_block_and_twice_the_blocks_fit(native_tiny: Path) -> None:
    options = {"dtype": "float32", "kv_cache_memory": 2e-4, "swap_space": 1e-4}
    wide, narrow = (
        make_native_runner(native_tiny, kv_cache_dtype=kv_dtype, **options).profile()
        for kv_dtype in ("float32", "bfloat16")
    )
    assert wide.block_bytes == 2 * narrow.block_bytes
    assert narrow.num_gpu_blocks - 2 * wide.num_gpu_blocks in (0, 1)
    assert narrow.num_cpu_blocks - 2 * wide.num_cpu_blocks in (0, 1)


@pytest.mark.parametrize("isa", available_isas())
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kv_dtype", ["auto", "float32", "bfloat16"])
def test_a_worker_announces_how_it_computes(
    native_tiny: Path, isa: Isa, dtype: str, kv_dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(ISA_VARIABLE, isa.name)
    runner = make_native_runner(native_tiny, dtype=dtype, kv_cache_dtype=kv_dtype)
    factors = dtype if multiplies_bfloat16(isa) else "float32"
    assert runner.model.dtype == dtype
    assert runner.model.numerics == Numerics(
        factors=factors,
        kernels=f"native {isa.name.lower()}",
        kv_cache_dtype=factors if kv_dtype == "auto" else kv_dtype,
    )


def test_activations_in_codes_are_announced_as_int8(native_tiny: Path) -> None:
    runner = make_native_runner(native_tiny, dtype="auto", quantization="int8")
    assert runner.model.numerics is not None
    assert runner.model.numerics.factors == "int8"


def test_the_line_at_start_says_that_bfloat16_rounds(
    native_tiny: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        make_native_runner(native_tiny, dtype="float32")
        make_native_runner(native_tiny, dtype="float32", kv_cache_dtype="bfloat16")
    exact, rounded = (line for line in caplog.messages if "K and V in" in line)
    assert "K and V in float32; " in exact
    assert "K and V in bfloat16, which rounds them; " in rounded


@pytest.mark.parametrize("name", ["fp8_e5m2", "int4", "float16"])
def test_another_type_is_refused(name: str) -> None:
    with pytest.raises(ValidationError, match="'auto', 'float32', 'bfloat16', 'int8' or 'fp8'"):
        CacheConfig(kv_cache_dtype=name)

"""Files that llama-quantize has written, in its mixtures of types.

`llama_quantize/` has a random model of one layer with a tied head, of `make_gguf`, as llama.cpp's
llama-quantize (build 11434) made it: `llama-quantize tiny.F32.gguf tiny.Q4_K_M.gguf Q4_K_M`. Rows
of 32 and 64 are no whole blocks of the K types, so such matrices have other types. So it made one
of Qwen3.5 of the converter's F32, in which a block of 256 columns spans heads of 32.
"""

import re
from pathlib import Path

import gguf
import pytest

from benchmarks.harness.random_checkpoint import config_of, shapes_of
from benchmarks.harness.random_gguf import save_gguf
from signalbox_worker.runner.native.executor import NativeExecutor
from tests.gpu_worker.generation import Driver
from tests.gpu_worker.model_runners import make_prompts, make_runner
from tests.gpu_worker.runner.loading.gguf_files import expand
from tests.native_kernels import skip_without_native_kernels

pytestmark = pytest.mark.slow

skip_without_native_kernels()

_SIZES = {"vocab_size": 512, "num_attention_heads": 4, "num_key_value_heads": 2}
_SIZES |= {"num_experts": 4, "num_experts_per_tok": 2}
_SIZES |= dict.fromkeys(("hidden_size", "intermediate_size", "moe_intermediate_size"), 256)
FILES = sorted(Path(__file__).parent.glob("llama_quantize/*.gguf"))
_PADDED = 4096
"""Bytes of rows that small matrices are filled up with."""
PROMPTS = make_prompts(1, 9, 40)


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_mixture_of_types_is_computed_as_its_values_are(file: Path, tmp_path: Path) -> None:
    assert_as_its_values(file, tmp_path)


def test_a_mixture_of_types_of_a_hybrid_is_computed_as_its_values_are(tmp_path: Path) -> None:
    config = config_of("lfm2-8b-a1b", 4) | _SIZES
    file = save_gguf(tmp_path / "lfm2moe.gguf", config, shapes_of(config), "Q4_K_M")
    assert_as_its_values(file, tmp_path)


def assert_as_its_values(file: Path, tmp_path: Path) -> None:
    source = gguf.GGUFReader(file)
    matrices = [one for one in source.tensors if len(one.shape) > 1 and "conv1d" not in one.name]
    types = {tensor.tensor_type.name for tensor in matrices}
    assert len(types) > 1
    runner = make_runner(file, block_size=16)
    assert isinstance(runner.executor, NativeExecutor)
    assert {*re.findall(r"\d of (\w+)", runner.executor.program.weights)} == types
    in_file = sum(tensor.n_bytes for tensor in source.tensors)
    assert runner.executor.program.weights_bytes <= 1.05 * in_file + _PADDED
    expanded = make_runner(expand(source, tmp_path / "x.gguf"), block_size=16, quantization="none")
    assert isinstance(expanded.executor, NativeExecutor)
    tokens = Driver(runner=runner).generate(PROMPTS, num_tokens=24)
    assert tokens == Driver(runner=expanded).generate(PROMPTS, num_tokens=24)

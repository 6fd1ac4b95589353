"""Quantised weights run as they are: what the blocks stand for, less what 8-bit rows cost."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from gpu_worker.batch.sampling_rows import PromptRows
from gpu_worker.checkpoints.quantization import Quantization, describe_form
from gpu_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from gpu_worker.loading.gguf_model import GGUFSource
from gpu_worker.loading.model_source import open_model
from gpu_worker.runner.model_runner import ModelRunner
from tests.gpu_worker.generation import make_batch, make_sequence
from tests.gpu_worker.loading.gguf_files import make_gguf
from tests.gpu_worker.tiny_models import VOCAB, make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

SHAPE = {"head_dim": 16, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
PROMPT = np.random.default_rng(5).integers(3, VOCAB, 100).tolist()


def make_runner(path: Path, *, backend: str = "auto", **model: Any) -> ModelRunner:
    runner = ModelRunner(
        ModelConfig(model=str(path), **{"quantization": "auto", **model}),
        CacheConfig(max_num_seqs=4, block_size=16),
        device_config=DeviceConfig(device="cpu", cpu_backend=backend),
    )
    runner.init_cache_engine(num_gpu_blocks=10, num_cpu_blocks=0)
    return runner


def log_probabilities(runner: ModelRunner) -> torch.Tensor:
    """Of each token of the prompt but the first."""
    batch = make_batch([(make_sequence(PROMPT, range(10)), len(PROMPT))], block_size=16)
    batch.prompt_rows = PromptRows(
        seq_index=np.array([0]),
        first_position=np.array([1]),
        lengths=np.array([len(PROMPT) - 1]),
        token_index=np.arange(len(PROMPT) - 1),
        targets=np.array(PROMPT[1:], dtype=np.int32),
        num_logprobs=np.zeros(len(PROMPT) - 1, dtype=np.int64),
    )
    found = runner.execute(batch).prompt_logprobs
    return torch.tensor([one.logprob for one in sorted(found, key=lambda one: one.row)])


def difference(first: ModelRunner, second: ModelRunner) -> float:
    return float((log_probabilities(first) - log_probabilities(second)).abs().mean())


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    path = tmp_path_factory.mktemp("llama")
    return path, make_model(path, "llama3", **SHAPE)


@pytest.mark.parametrize("family", ["llama2", "llama-biased", "qwen3"])
def test_eight_bits_made_at_load_are_close_to_floats(family: str, tmp_path: Path) -> None:
    """Widths that no group of 32 divides are padded."""
    sizes = {"head_dim": 16, "hidden_size": 54, "intermediate_size": 77}
    make_model(tmp_path, family, **sizes)
    floats = make_runner(tmp_path, dtype="float32")
    eight = make_runner(tmp_path, dtype="float32", quantization="int8")
    four = make_runner(tmp_path, dtype="float32", quantization="int4")
    assert 0 < difference(floats, eight) < 0.1
    assert difference(floats, eight) < difference(floats, four) < 1


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"])
def test_types_of_a_file_run_as_they_are(
    kind: str, llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_gguf(tmp_path / "x.gguf", llama[1], "llama", kind_of=lambda _: kind)
    with caplog.at_level(logging.INFO):
        runner = make_runner(path)
    assert f"matrices: 13 of {kind};" in caplog.text
    floats = make_runner(path, dtype="float32")
    assert 0 < difference(floats, runner) < 0.08


def test_untied_tables_of_a_file_are_two(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference = make_model(tmp_path, "llama2", **SHAPE | {"num_key_value_heads": 2})
    kinds = {"token_embd.weight": "Q4_0", "output.weight": "Q8_0"}
    path = make_gguf(
        tmp_path / "x.gguf", reference, "llama", kind_of=lambda name: kinds.get(name, "F16")
    )
    with caplog.at_level(logging.INFO):
        runner = make_runner(path, quantization="gguf", dtype="float32")
    assert "12 of FLOAT32, 1 of Q4_0, 1 of Q8_0" in caplog.text
    assert difference(make_runner(path, dtype="float32"), runner) < 0.08


def test_fused_matrices_may_mix_types(
    llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """V stands beside Q and K; gate and up interleave, and become floats."""
    kinds = {"attn_v": "Q8_0", "ffn_up": "Q5_1", "attn_output": "F16"}
    path = make_gguf(
        tmp_path / "x.gguf",
        llama[1],
        "llama",
        kind_of=lambda name: kinds.get(name.split(".")[2], "Q4_1") if "blk" in name else "Q8_0",
    )
    with caplog.at_level(logging.INFO):
        runner = make_runner(path, quantization="gguf", dtype="float32")
    assert "parts of types Q4_1, Q5_1, and becomes floats" in caplog.text
    assert "6 of Q4_1, 6 of FLOAT32, 4 of Q8_0" in caplog.text
    assert difference(make_runner(path, dtype="float32"), runner) < 0.08


def test_a_dtype_asks_for_weights_of_it(
    llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_gguf(tmp_path / "x.gguf", llama[1], "llama", kind_of=lambda _: "Q8_0")
    for options in ({"dtype": "float32"}, {"quantization": "none"}):
        caplog.clear()
        with caplog.at_level(logging.INFO):
            make_runner(path, **options)
        assert "matrices: 13 of " in caplog.text
        assert " of Q8_0" not in caplog.text


def test_made_up_weights_are_quantised_too(
    llama: tuple[Path, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = make_runner(llama[0], load_format="dummy", quantization="int4")
    assert "12 of Q4_1, 1 of Q8_0" in caplog.text
    assert log_probabilities(runner).isfinite().all()


def test_what_cannot_run_natively_is_said(
    llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_gguf(tmp_path / "x.gguf", llama[1], "llama", kind_of=lambda _: "Q4_0")
    with caplog.at_level(logging.INFO):
        make_runner(path, backend="torch")
    assert "the file's quantised weights become floats: natively, cpu_backend" in caplog.text
    for options, reason in (
        ({"quantization": "gguf"}, "takes a native program, but cpu_backend is 'torch'"),
        ({"quantization": "int8"}, "takes a native program, but cpu_backend is 'torch'"),
    ):
        with pytest.raises(ModelError, match=reason):
            make_runner(path, backend="torch", **options)
    with pytest.raises(ModelError, match="no quantised blocks"):
        make_runner(llama[0], quantization="gguf")
    with pytest.raises(ValueError, match="'auto', 'none', 'gguf', 'int8' or 'int4'"):
        make_runner(path, quantization="fp8")


def test_models_of_another_program_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "gpt2")
    with pytest.raises(ModelError, match="quantization is 'int8', which takes a native program"):
        make_runner(tmp_path, quantization="int8")


def test_the_form_of_a_files_weights_is_told_with_the_size_of_the_other(
    llama: tuple[Path, Any], tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "m.gguf", llama[1], "llama", kind_of=lambda _: "Q8_0")
    source = open_model(ModelConfig(model=str(path)), lambda _: None)
    assert isinstance(source, GGUFSource)
    sizes = source.sizes
    as_floats = sizes.bytes_in("bfloat16")
    num_floats = sum(values.size for _, values in source.weights())
    assert (sizes.block_type, as_floats) == ("Q8_0", 2 * num_floats)
    assert (
        num_floats < sizes.stored_bytes < as_floats
    )  # 8.5 bits of a matrix's value, 32 of a norm's
    expanded = describe_form(source, torch.bfloat16, None)
    assert "Q8_0 of the file expanded to bfloat16" in expanded
    assert "--quantization gguf" in expanded
    assert "--quantization none" in describe_form(source, torch.float32, Quantization("gguf"))

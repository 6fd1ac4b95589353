"""Quantised weights run as they are: what the blocks stand for, less what 8-bit rows cost."""

import logging
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.native import ISA_VARIABLE
from signalbox_kernels.storage import Storage
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig, ModelError
from signalbox_worker.files.checkpoints.quantization import Quantization, describe_form
from signalbox_worker.runner.loading.model_source import open_model
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.native.weights import Weights
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service import runner_factory as factory
from tests.gpu_worker.model_runners import log_probabilities
from tests.gpu_worker.runner.loading.gguf_files import ARCHITECTURES, make_gguf
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

SHAPE = {"head_dim": 16, "hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}


def make_runner(path: Path, *, backend: str = "auto", **model: Any) -> Any:
    runner: Any = factory.make_runner(
        RunnerConfig(
            model=ModelConfig(model=str(path), **model),
            cache=CacheConfig(max_num_seqs=4, block_size=16),
            device=DeviceConfig(device="cpu", cpu_backend=backend),
        )
    )
    runner.init_cache_engine(num_gpu_blocks=10, num_cpu_blocks=0)
    return runner


def difference(first: Runner, second: Runner) -> float:
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
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(path)  # in the default form
    assert f"matrices: 13 of {kind};" in caplog.text
    floats = make_runner(path, dtype="float32")
    assert 0 < difference(floats, runner) < 0.08


def test_untied_tables_of_a_file_are_two(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference = make_model(tmp_path, "llama2", **SHAPE | {"num_key_value_heads": 2})
    kinds = {"token_embd.weight": "Q4_0", "output.weight": "Q8_0"}
    path = make_gguf(
        tmp_path / "x.gguf", reference, "llama", kind_of=lambda name: kinds.get(name, "F16")
    )
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(path, quantization="gguf")
    assert re.search(r"12 of B?F16, 1 of Q4_0, 1 of Q8_0", caplog.text)
    assert difference(make_runner(path, dtype="float32"), runner) < 0.08


def test_fused_matrices_may_mix_types(
    llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """V stands beside Q and K, and up multiplies the gate in a product of its own."""
    kinds = {"attn_v": "Q8_0", "ffn_up": "Q5_1", "attn_output": "F16"}
    path = make_gguf(
        tmp_path / "x.gguf",
        llama[1],
        "llama",
        kind_of=lambda name: kinds.get(name.split(".")[2], "Q4_1") if "blk" in name else "Q8_0",
    )
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(path, quantization="gguf")
    assert re.search(r"9 of Q4_1, 4 of Q8_0, 3 of B?F16, 3 of Q5_1", caplog.text)
    assert 0 < difference(make_runner(path, dtype="float32"), runner) < 0.08


KINDS = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "mixed")
MIXED = {"attn_v": "Q8_0", "attn_k": "F16", "ffn_up": "Q5_1", "attn_output": "BF16"}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama3", "qwen2"])
def test_float32_over_the_types_of_a_file_has_the_bits_of_expanded_weights(
    kind: str,
    family: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Tied and separate heads, biases, and fused matrices of one type and of several."""

    def kind_of(name: str) -> str:
        part = name.split(".")[2] if "blk" in name else ""
        return MIXED.get(part, "Q4_1") if kind == "mixed" else kind

    options = {"num_key_value_heads": 1, "tie_word_embeddings": family == "llama3"}
    reference = make_model(tmp_path, family, **SHAPE | options)
    path = make_gguf(tmp_path / "x.gguf", reference, ARCHITECTURES[family], kind_of=kind_of)
    with caplog.at_level(logging.DEBUG):
        stored = log_probabilities(make_runner(path, dtype="float32"))
    assert "FLOAT32" not in caplog.text
    assert f" of {'Q5_1' if kind == 'mixed' else kind}" in caplog.text

    def expanded_matrix(self: Weights, name: str) -> AnyArray:
        return to_float32(self._take(name).read()[: self._shapes[name][0]])

    monkeypatch.setattr(Weights, "matrix", expanded_matrix)
    with caplog.at_level(logging.DEBUG):
        expanded = log_probabilities(make_runner(path, dtype="float32"))
    assert " of F32; " in caplog.text
    assert torch.equal(stored, expanded)


@pytest.mark.parametrize("kind", ["BF16", "F16"])
def test_bfloat16_without_its_instructions_is_a_storage(
    kind: str,
    llama: tuple[Path, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The tokens are those of float32 over weights that are rounded to bfloat16."""
    monkeypatch.setenv(ISA_VARIABLE, "portable")
    path = make_gguf(tmp_path / "x.gguf", llama[1], "llama", kind_of=lambda _: kind)
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(path, dtype="bfloat16")
    assert "matrices: 13 of BF16; " in caplog.text
    if kind == "BF16":
        exact = make_runner(path, dtype="float32")
        assert difference(exact, runner) < 0.05  # the vectors of norms are rounded


@pytest.mark.parametrize(
    ("options", "is_expanded"),
    [
        ({}, False),
        ({"dtype": "bfloat16"}, False),
        ({"dtype": "float32"}, False),
        ({"dtype": "float32", "quantization": "none"}, False),
        ({"dtype": "bfloat16", "quantization": "none"}, True),
    ],
)
def test_blocks_stay_unless_floats_of_16_bits_are_asked_for(
    options: dict[str, str],
    is_expanded: bool,
    llama: tuple[Path, Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = make_gguf(tmp_path / "x.gguf", llama[1], "llama", kind_of=lambda _: "Q8_0")
    with caplog.at_level(logging.DEBUG):
        make_runner(path, **options)
    assert "matrices: 13 of " in caplog.text
    assert ("13 of Q8_0" not in caplog.text) is is_expanded


def test_made_up_weights_are_quantised_too(
    llama: tuple[Path, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(llama[0], load_format="dummy", quantization="int4")
    assert "12 of Q4_1, 1 of Q8_0" in caplog.text
    assert log_probabilities(runner).isfinite().all()


def test_what_cannot_run_natively_is_said(
    llama: tuple[Path, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = make_gguf(tmp_path / "x.gguf", llama[1], "llama", kind_of=lambda _: "Q4_0")
    with caplog.at_level(logging.DEBUG):
        make_runner(path, backend="torch")
    assert "in the native implementation, but cpu_backend is 'torch'" in caplog.text
    for options, reason in (
        ({"quantization": "gguf"}, "takes a native program, but cpu_backend is 'torch'"),
        ({"quantization": "int8"}, "takes a native program, but cpu_backend is 'torch'"),
    ):
        with pytest.raises(ModelError, match=reason):
            make_runner(path, backend="torch", **options)
    with pytest.raises(ModelError, match="no quantised blocks"):
        make_runner(llama[0], quantization="gguf")
    with pytest.raises(ValueError, match=r"'auto', 'none', 'gguf', .*'gptq', "):
        make_runner(path, quantization="fp4")


def test_models_of_another_program_are_refused(tmp_path: Path) -> None:
    make_model(tmp_path, "gpt2")
    with pytest.raises(ModelError, match="quantization is 'int8', which takes a native program"):
        make_runner(tmp_path, quantization="int8")


def test_one_line_tells_the_form_its_size_and_what_the_other_choice_takes(
    llama: tuple[Path, Any], tmp_path: Path
) -> None:
    path = make_gguf(tmp_path / "m.gguf", llama[1], "llama", kind_of=lambda _: "Q8_0")
    source = open_model(ModelConfig(model=str(path)), lambda _: None)
    sizes = source.sizes
    assert sizes is not None
    num_floats = sum(tensor.read().size for tensor in source.stored().values())
    assert (sizes.block_type, sizes.bytes_in("bfloat16")) == ("Q8_0", 2 * num_floats)
    # 8.5 bits of a matrix's value, 32 of a norm's
    assert num_floats < sizes.stored_bytes < 2 * num_floats
    large = replace(sizes, num_values=300 << 20, stored_bytes=2_000 << 20, num_table_values=0)
    plain = replace(large, block_type="")
    gguf, int8 = Quantization("gguf"), Quantization("int8", Storage.Q8_0, Storage.Q8_0)
    reason, native = (
        "no native program computes GPT2LMHeadModel",
        "in the native implementation, but no",
    )
    as_it_is = "Q8_0 of the file as it is, 2,000 MiB; --quantization none multiplies them in"
    assert describe_form(large, "float32", gguf, None) == f"weights: {as_it_is} float32"
    assert "Q8_0 of the file, its values held as" in describe_form(
        replace(large, held_type="BOOK_IQ2"), "float32", gguf, None
    )
    for weights, line in (  # an encoder takes no --quantization that could be recommended
        (large, "Q8_0 of the file expanded to float32, 1,200 MiB"),
        (plain, "types of the files, computed in float32, 2,000 MiB"),
    ):
        described = describe_form(weights, "float32", None, None, has_forms=False)
        assert described == f"weights: {line}"
    for weights, chosen, why_not, line in (
        (large, gguf, None, "Q8_0 of the file as it is, 2,000 MiB; --quantization none takes 600"),
        (large, None, None, "Q8_0 of the file expanded to bfloat16, 600 MiB; --quantization gguf"),
        (plain, None, None, "bfloat16, 600 MiB; --quantization int8 takes 319 MiB"),
        (plain, int8, None, "int8, made at load, 319 MiB; --quantization none takes 600 MiB in"),
        (plain, None, reason, f"bfloat16, 600 MiB; --quantization int8 takes 319 MiB {native}"),
        (None, None, reason, f"random, bfloat16; the native implementation is not used: {reason}"),
    ):
        described = describe_form(weights, "bfloat16", chosen, why_not)
        assert described.startswith(f"weights: {line}")
        assert why_not is None or described.endswith(why_not)

"""Mixtures of experts whose checkpoints are in FP8, held as they are where there is hardware."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from signalbox_kernels import ops
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.structs import Element
from signalbox_kernels.torch import registry
from signalbox_kernels.torch.rounding import rounded
from signalbox_worker.models.layers import Placement
from signalbox_worker.models.layers.fp8 import Fp8Matrix
from signalbox_worker.models.layers.matrices import MatrixPart, PlainMatrix
from signalbox_worker.models.layers.moe import ExpertLinear
from signalbox_worker.runner.loading import loaded_model
from tests.gpu_worker.model_runners import (
    WEIGHTS,
    last_logits,
    log_probabilities,
    make_prompts,
    make_runner,
    remove_files,
)
from tests.gpu_worker.quantised_models import Encode, by_block, by_row
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}
PROMPTS = make_prompts(30, 31)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs on a CPU as if this were a card with products in FP8."""
    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: (9, 0))


def save_both(path: Path, encode: Encode, config: dict[str, Any]) -> tuple[Path, Path]:
    """Saves a mixture whose experts are encoded, and the same decoded."""
    encoded, decoded = path / "encoded", path / "decoded"
    for each in (encoded, decoded):
        each.mkdir()
        make_model(
            each, "qwen3-moe", hidden_size=160, moe_intermediate_size=192, num_hidden_layers=1
        )
    tensors = {k: v for file in decoded.glob("*.safetensors") for k, v in load_file(file).items()}
    for each in (encoded, decoded):
        remove_files(each, *WEIGHTS)
    codes: dict[str, Tensor] = {}
    for name, weight in tensors.items():
        base, _, _ = name.rpartition(".")
        if ".experts." in name:
            parts, tensors[name] = encode(weight.float())
            codes |= {f"{base}.{end}": part.contiguous() for end, part in parts.items()}
        else:
            codes[name] = weight
    save_file(codes, encoded / "model.safetensors")
    save_file(tensors, decoded / "model.safetensors")
    described = json.loads((encoded / "config.json").read_text())
    (encoded / "config.json").write_text(json.dumps({**described, "quantization_config": config}))
    return encoded, decoded


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize(("encode", "config"), [(by_row, FP8), (by_block, BLOCKS)])
def test_experts_are_held_and_computed_as_stored(
    encode: Encode,
    config: dict[str, Any],
    triton_device: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    if triton_device != "cpu":
        pytest.skip("the model runs on a CPU, where kernels are interpreted")
    encoded, decoded = save_both(tmp_path, encode, config)
    with caplog.at_level("INFO"):
        runner = make_runner(encoded, cpu_backend="torch")
    assert f"{NOT_ROUNDED} 24 matrices" in caplog.text
    for layer in runner.executor.loaded.model.layers:
        mixture = layer.feed_forward
        assert mixture.gate_up.is_quantised and mixture.down.is_quantised
        assert mixture.gate_up.stacked().weight.dtype is torch.float8_e4m3fn
    expected = last_logits(make_runner(decoded, cpu_backend="torch"), *PROMPTS, chunks=(29, 1))
    actual = last_logits(runner, *PROMPTS, chunks=(29, 1))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)


NOT_ROUNDED = "activations are not rounded as prescribed before"


def test_inputs_of_experts_are_rounded_where_they_are_no_op(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    encoded, _ = save_both(tmp_path, by_row, FP8)
    with caplog.at_level("INFO"):
        runner = make_runner(encoded, cpu_backend="torch")
    assert NOT_ROUNDED not in caplog.text
    mixture = runner.executor.loaded.model.layers[0].feed_forward
    rows = torch.randn(2, 160) * 5
    of_codes = rounded(rows, Rounding(code=Element.FP8_E4M3))
    found = mixture.gate_up.multiply(3, rows)
    assert torch.equal(found, mixture.gate_up.multiply(3, of_codes))
    assert not torch.equal(found, mixture.gate_up._matrix.packed[3].apply(rows, None))


@pytest.mark.parametrize(("encode", "config"), [(by_row, FP8), (by_block, BLOCKS)])
def test_native_experts_are_multiplied_as_stored(
    encode: Encode, config: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With inputs rounded as in PyTorch, where few may come out one code apart."""
    skip_without_native_kernels()
    encoded, _ = save_both(tmp_path, encode, config)
    with caplog.at_level("DEBUG"):
        runner = make_runner(encoded, cpu_backend="native", block_size=16)
    assert "16 of E4M3" in caplog.text  # gate and up are one
    expected = log_probabilities(make_runner(encoded, cpu_backend="torch"))
    torch.testing.assert_close(log_probabilities(runner), expected, rtol=0, atol=0.05)


@pytest.mark.usefixtures("hopper")
def test_without_a_kernel_experts_are_decoded(tmp_path: Path) -> None:
    assert not registry.has_own(ops.mix_experts.__name__, torch.device("cpu"))
    encoded, decoded = save_both(tmp_path, by_row, FP8)
    runner = make_runner(encoded, cpu_backend="torch", quantization="none")
    assert not runner.executor.loaded.model.layers[0].feed_forward.gate_up.is_quantised
    expected = last_logits(make_runner(decoded, cpu_backend="torch"), *PROMPTS, chunks=(29, 1))
    actual = last_logits(runner, *PROMPTS, chunks=(29, 1))
    torch.testing.assert_close(actual, expected, rtol=0, atol=1e-3)


@pytest.mark.usefixtures("triton_device")
def test_experts_are_held_in_forms_that_their_kernel_takes() -> None:
    part = MatrixPart(0, slice(0, 4), slice(0, 8), (4, 8))
    layer = ExpertLinear({"one": part}, 1, Placement(torch.device("cpu"), torch.float32))
    assert layer.can_hold(Fp8Matrix)
    assert not layer.can_hold(PlainMatrix)

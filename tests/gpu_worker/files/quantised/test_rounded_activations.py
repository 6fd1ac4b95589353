"""Activations are rounded as a checkpoint prescribes, and as compressed-tensors rounds them.

`make_rounded.py` made rounded.json with it.
"""

import json
import logging
from pathlib import Path
from typing import Any

import pytest
import torch

from signalbox_kernels.rounding import Rounding
from signalbox_kernels.structs import Element
from signalbox_kernels.torch.rounding import rounded
from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised.activations import described_scheme
from signalbox_worker.files.quantised.configuration import quantised_checkpoint
from signalbox_worker.runner.loading import loaded_model
from tests.gpu_worker.files.quantised.make_rounded import (
    CHECKPOINTS,
    CUT,
    ROUNDED,
    SCALES,
    SCHEMES,
    ZERO_POINT,
    copy_checkpoint,
    make_rows,
)
from tests.gpu_worker.model_runners import make_runner
from tests.gpu_worker.rounded_products import (
    assert_rounds_as,
    runner_log_probabilities,
    share_of_equal,
)
from tests.gpu_worker.tiny_models import make_tokenizer
from tests.native_kernels import skip_without_native_kernels

on_both_backends = pytest.mark.parametrize("backend", ["native", "torch"])
EXPECTED = json.loads(ROUNDED.read_text())


def rounding_of(name: str) -> Rounding:
    scheme = described_scheme(SCHEMES[name] | {"num_bits": 8})
    assert scheme is not None
    tensors = {
        "input_scale": torch.tensor([SCALES[SCHEMES[name]["type"]]]).numpy(),
        "input_zero_point": torch.tensor([ZERO_POINT], dtype=torch.int8).numpy(),
    }
    return scheme.rounding(tensors.get)


@pytest.mark.parametrize("name", SCHEMES)
def test_values_are_those_of_compressed_tensors(name: str) -> None:
    found = rounded(make_rows(), rounding_of(name))
    torch.testing.assert_close(found, torch.tensor(EXPECTED["values"][name]), rtol=1e-6, atol=0)


def test_a_last_group_may_have_fewer_columns() -> None:
    how, rows = Rounding(code=Element.FP8_E4M3, group_size=64), make_rows()
    parts = [rounded(part, how) for part in (rows[:, :64], rows[:, 64:])]
    assert torch.equal(rounded(rows, how), torch.cat(parts, dim=1))


def serve(name: str, folder: Path, backend: str, **options: Any) -> Any:
    if backend == "native":
        skip_without_native_kernels()
    copy_checkpoint(name, folder)
    make_tokenizer(folder)
    return make_runner(folder, cpu_backend=backend, **options)


@on_both_backends
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_logits_are_those_of_compressed_tensors_own_forward(
    name: str, backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = serve(name, tmp_path, backend)
    kind = "int8" if "w8a8" in name else "fp8_e4m3"
    assert f"activations are rounded to {kind} as it prescribes" in caplog.text
    assert runner.model.numerics.factors == kind
    assert_rounds_as(runner, torch.tensor(EXPECTED["log probabilities"][name]))


@pytest.mark.parametrize("name", [name for name in CHECKPOINTS if "fp8" in name])
def test_so_are_those_of_a_card_that_multiplies_codes_of_fp8(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the reference of its op."""
    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: (9, 0))
    with caplog.at_level(logging.INFO):
        runner = serve(name, tmp_path, "torch")
    assert " matrices are held in fp8" in caplog.text
    assert "that no kernel takes" not in caplog.text
    assert_rounds_as(runner, torch.tensor(EXPECTED["log probabilities"][name]))


@on_both_backends
@pytest.mark.parametrize("name", CUT)
def test_parts_of_a_fused_matrix_are_rounded_each_by_its_own_scale(
    name: str, backend: str, tmp_path: Path
) -> None:
    runner = serve(name, tmp_path, backend)
    assert_rounds_as(runner, torch.tensor(EXPECTED["log probabilities"][name]))
    for other in {*CUT, "ct_fp8_static"} - {name}:
        expected = torch.tensor(EXPECTED["log probabilities"][other])
        assert share_of_equal(runner_log_probabilities(runner), expected) == 0


@on_both_backends
@pytest.mark.parametrize("name", CHECKPOINTS)
def test_without_quantization_activations_stay_floats(
    name: str, backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        runner = serve(name, tmp_path, backend, quantization="none")
    assert "activations are not rounded as it prescribes" in caplog.text
    assert runner.model.numerics.factors == "float32"
    found = runner_log_probabilities(runner)
    unrounded = torch.tensor(EXPECTED["log probabilities without rounding"][name])
    assert share_of_equal(found, unrounded) == 1
    assert share_of_equal(found, torch.tensor(EXPECTED["log probabilities"][name])) == 0


UNSERVED: list[dict[str, Any]] = [
    {"type": "int", "strategy": "tensor", "dynamic": True},
    {"type": "float", "strategy": "token", "dynamic": True, "symmetric": False},
    {"type": "float", "strategy": "group", "group_size": 16, "dynamic": True},
    {"type": "float", "strategy": "group", "group_size": 32, "dynamic": "local"},
    {"type": "float", "strategy": "group", "group_size": 32, "dynamic": False},
    {"type": "int", "strategy": "token", "dynamic": True, "num_bits": 4},
]
BY_TOKEN = {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True}


def checkpoint_with(*activations: dict[str, Any]) -> Any:
    """Reads a configuration of two groups; the first one is of q_proj."""
    weights = {"num_bits": 8, "type": "int", "strategy": "channel"}
    groups = {
        name: {"targets": [name], "weights": weights, "input_activations": how}
        for name, how in zip(("re:.*q_proj", "Linear"), activations, strict=True)
    }
    method = {"quant_method": "compressed-tensors", "format": "int-quantized"}
    return quantised_checkpoint({"quantization_config": method | {"config_groups": groups}})


@pytest.mark.parametrize("scheme", UNSERVED, ids=str)
def test_other_schemes_leave_activations_in_floats(scheme: dict[str, Any]) -> None:
    checkpoint = checkpoint_with({"num_bits": 8} | scheme, BY_TOKEN)
    assert checkpoint.leaves_activations
    assert checkpoint.activations_of("model.layers.0.self_attn.q_proj") is None
    assert checkpoint.activations_of("model.layers.0.self_attn.k_proj") is not None


def test_modules_may_have_different_schemes() -> None:
    checkpoint = checkpoint_with(BY_TOKEN | {"type": "float"}, BY_TOKEN)
    codes = [checkpoint.activations_of(f"layers.0.{name}_proj").code for name in "qk"]
    assert codes == [Element.FP8_E4M3, Element.INT8]
    assert not checkpoint.leaves_activations


def test_an_unknown_scheme_of_fp8_is_refused() -> None:
    described = {"quant_method": "fp8", "activation_scheme": "learned"}
    with pytest.raises(ModelError, match="activation_scheme 'learned'"):
        quantised_checkpoint({"quantization_config": described})

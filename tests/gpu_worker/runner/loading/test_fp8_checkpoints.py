"""Checkpoints in FP8: decoded where there is no hardware for it, and held as they are where there
is."""

import itertools
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor

from signalbox_contract.startup import ignore_progress
from signalbox_kernels.torch import registry
from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.files.checkpoints.quantization import Quantization, choose_quantization
from signalbox_worker.files.quantised.configuration import FP8 as FP8_FORM
from signalbox_worker.files.quantised.configuration import FP8_BLOCKS, quantised_checkpoint
from signalbox_worker.models.layers import Placement
from signalbox_worker.models.layers.fp8 import Fp8BlockMatrix
from signalbox_worker.models.layers.matrices import MatrixPart
from signalbox_worker.runner.loading import loaded_model
from signalbox_worker.runner.loading.model_source import open_model, weight_sizes
from tests.gpu_worker.model_runners import (
    WEIGHTS,
    last_logits,
    make_prompts,
    make_runner,
    remove_files,
)
from tests.gpu_worker.models.test_models import assert_ranks_agree
from tests.gpu_worker.quantised_models import (
    SHAPE,
    Encode,
    by_block,
    by_matrix,
    by_row,
    save_quantised,
)
from tests.gpu_worker.rounded_products import assert_rounds_as, reference_log_probabilities
from tests.gpu_worker.tiny_models import make_model
from tests.native_kernels import skip_without_native_kernels

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BLOCKS = FP8 | {"weight_block_size": [128, 128]}
FLOAT8 = {"type": "float", "num_bits": 8}


def compressed(strategy: str, activations: dict[str, Any] | None) -> dict[str, Any]:
    weights = FLOAT8 | {"strategy": strategy, "dynamic": False, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": activations,
            }
        },
        "ignore": ["lm_head"],
    }


BY_TOKEN = FLOAT8 | {"strategy": "token", "dynamic": True}
FORMS: dict[str, tuple[Encode, dict[str, Any]]] = {
    "by matrix": (by_matrix, FP8),
    "by row": (by_row, FP8),
    "by block": (by_block, BLOCKS),
    "compressed": (by_row, compressed("channel", BY_TOKEN)),
}
HOPPER, AMPERE = (9, 0), (8, 0)
PROMPTS = make_prompts(30, 31)


@pytest.fixture
def hopper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the references of ops as if this were a card with products in FP8."""
    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: HOPPER)


@pytest.fixture
def exact_activations() -> Iterator[None]:
    """Leaves the rounding of activations out of products."""

    def product(
        x: Tensor,
        weight: Tensor,
        scales: Tensor,
        bias: Tensor | None,
        *,
        rows_per_scale: int,
        x_scale: float | None,
    ) -> Tensor:
        assert x_scale is None
        width = 128 if scales.shape[1] > 1 else x.shape[1]
        of_rows = scales.repeat_interleave(rows_per_scale, dim=0)[: len(weight)]
        matrix = weight.float() * of_rows.repeat_interleave(width, dim=1)[:, : x.shape[1]]
        return F.linear(x, matrix, bias)

    registry.register("fp8_linear", "cpu", product)
    yield
    registry.unregister("fp8_linear", "cpu")


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("cpu_backend", ["auto", "torch"])
def test_a_cpu_holds_the_codes_natively_and_decodes_them_in_pytorch(
    form: str, cpu_backend: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = save_quantised(tmp_path, "llama2", *FORMS[form])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors |= {f"model.layers.0.self_attn.{side}_scale": torch.ones(1) for side in "kv"}
    save_file(tensors, tmp_path / "model.safetensors")
    with caplog.at_level(logging.DEBUG):
        runner = make_runner(tmp_path, cpu_backend=cpu_backend)
    assert "weights: fp8 of the checkpoint, " in caplog.text
    is_native = "steps run natively" in caplog.text
    assert ("decoded to float32" in caplog.text) != is_native
    assert (" of E4M3, " in caplog.text) == is_native
    assert "; activations are rounded to fp8_e4m3 as it prescribes" in caplog.text
    assert_rounds_as(runner, reference_log_probabilities(reference))


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
@pytest.mark.parametrize("form", FORMS)
def test_a_card_holds_what_the_checkpoint_says(
    form: str, family: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As the decoded model computes that rounds its activations."""
    reference = save_quantised(tmp_path, family, *FORMS[form], stays="layers.1.mlp.up")
    with caplog.at_level(logging.INFO):
        runner = make_runner(tmp_path, cpu_backend="torch")
    assert "weights: fp8 of the checkpoint, " in caplog.text
    assert "19 matrices are held in fp8" in caplog.text  # of 21; gate is not held without up
    decoded = make_runner(tmp_path, cpu_backend="torch", quantization="none")
    layers = [layer.attention for layer in runner.executor.loaded.model.layers]
    assert all(layer.qkv.is_quantised and layer.out.is_quantised for layer in layers)
    of_layers = [layer.feed_forward for layer in runner.executor.loaded.model.layers]
    assert [one.gate_up.is_quantised for one in of_layers] == [True, False, True]
    assert runner.executor.loaded.weights_bytes < 0.6 * decoded.executor.loaded.weights_bytes
    assert_rounds_as(runner, reference_log_probabilities(reference))


@pytest.mark.usefixtures("hopper")
def test_floats_become_fp8_at_load(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    reference = make_model(tmp_path, "qwen3", **SHAPE)
    with caplog.at_level(logging.INFO):
        runner = make_runner(tmp_path, cpu_backend="torch", quantization="fp8")
    assert "weights: fp8, made at load, " in caplog.text
    layer = runner.executor.loaded.model.layers[0].attention.qkv._matrix
    assert layer.codes.dtype is torch.float8_e4m3fn
    assert layer.scales.shape == (12 * 32, 1)
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPTS[0]])).logits[0, -1]
    actual = last_logits(runner, *PROMPTS, chunks=(29, 1))
    assert F.cosine_similarity(actual, expected, dim=0) > 0.98  # weights are rounded too


@pytest.mark.usefixtures("hopper")
@pytest.mark.parametrize("described", [None, FP8, BLOCKS])
def test_made_up_weights_are_held_in_fp8(described: Any, tmp_path: Path) -> None:
    make_model(tmp_path, "mixtral", **SHAPE, quantization_config=described)
    remove_files(tmp_path, *WEIGHTS)
    form = "auto" if described else "fp8"
    runner = make_runner(tmp_path, cpu_backend="torch", load_format="dummy", quantization=form)
    attention = runner.executor.loaded.model.layers[0].attention
    assert attention.qkv.is_quantised
    assert not runner.executor.loaded.model.layers[0].feed_forward.router.is_quantised
    logits = last_logits(runner, *PROMPTS, chunks=(29, 1))
    assert logits.isfinite().all() and logits.std() > 1e-3


@pytest.mark.usefixtures("exact_activations")
@pytest.mark.parametrize("size", [2, 4])  # 4 ranks share 2 K and V heads
@pytest.mark.parametrize("form", ["by matrix", "by row", "by block", "made at load"])
def test_ranks_hold_shares_of_one_matrix(form: str, size: int, tmp_path: Path) -> None:
    """Parts of a rank start within blocks, which their scales follow."""
    widths: Any = {"head_dim": 64}  # the columns of a rank are whole blocks
    if form == "made at load":
        make_model(tmp_path, "llama2", **SHAPE | widths)
        held = Quantization("fp8", form=FP8_FORM)
    else:
        save_quantised(tmp_path, "llama2", *FORMS[form], **widths)
        stored = FP8_BLOCKS if form == "by block" else FP8_FORM
        held = Quantization("fp8", form=stored, is_stored=True)
    assert_ranks_agree(tmp_path, size, held)


def test_ranks_that_would_share_a_block_are_refused() -> None:
    part = MatrixPart(0, slice(0, 128), slice(64, 128), (128, 128))
    placement = Placement(torch.device("cpu"), torch.float32)
    with pytest.raises(ModelError, match="64 columns for each shard; use another tensor_parallel"):
        Fp8BlockMatrix([part], placement)


def test_sizes_count_values_not_codes(tmp_path: Path) -> None:
    reference = save_quantised(tmp_path, "llama2", by_block, BLOCKS)
    sizes = weight_sizes(ModelConfig(model=str(tmp_path)))
    assert sizes is not None
    num_values = sum(parameter.numel() for parameter in reference.parameters())
    assert sizes.bytes_in("bfloat16") == 2 * num_values
    assert sizes.bytes_in("fp8") == (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.parametrize(
    ("capability", "reason"),
    [
        (None, "compute capability 8.9, and this is a CPU; use 'auto' or 'int8'"),
        (AMPERE, "compute capability 8.9, and this one has 8.0; use 'auto'"),
    ],
)
def test_a_device_without_fp8_refuses_it_by_name(
    capability: Any, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_model(tmp_path, "llama2")
    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: capability)
    remove_files(tmp_path, "*.safetensors")  # nothing of them is read
    with pytest.raises(ModelError, match=f"quantization is 'fp8', but it takes .* {reason}"):
        make_runner(tmp_path, cpu_backend="torch", quantization="fp8", load_format="dummy")


def test_blocks_that_config_json_leaves_out_are_told_by_the_tensors(tmp_path: Path) -> None:
    """transformers takes them by default; where scales are of a matrix, vLLM's files have none."""
    found = []
    for described in (BLOCKS, FP8):
        save_quantised(tmp_path, "llama2", by_block, described)
        stored = open_model(ModelConfig(model=str(tmp_path)), ignore_progress).stored()
        found.append({name: (one.form, one.rounding) for name, one in stored.items()})
    assert found[0] == found[1]


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        ({"quant_method": "exl3"}, "is quantised by 'exl3', which is not supported"),
        (FP8 | {"weight_block_size": [64, 64]}, r"in FP8 by blocks of \[64, 64\]; use one by"),
        (compressed("group", BY_TOKEN), "by compressed-tensors with groups of 'None'"),
        (compressed("token", None), "'float-quantized' of float in 8 bits by token"),
    ],
)
def test_other_forms_are_refused_by_name(
    described: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    save_quantised(tmp_path, "llama2", by_matrix, described)
    with pytest.raises(ModelError, match=reason):
        make_runner(tmp_path)


ODD_VALUES = (None, [], {}, "x", 3, -5, 1.5, [1, 2], {"a": 1}, {"a": None}, {"-:x": None}, 10**30)


@pytest.mark.parametrize("method", ["awq", "gptq", "fp8", "compressed-tensors"])
def test_odd_fields_of_a_configuration_are_refused_by_name_or_read(method: str) -> None:
    fields = "bits w_bit group_size q_group_size version format zero_point checkpoint_format"
    fields += " dynamic pack_dtype weight_block_size config_groups quant_method unknown"
    plain = compressed("channel", BY_TOKEN) if method.startswith("c") else {"quant_method": method}
    assert quantised_checkpoint({"quantization_config": plain}) is not None
    for field, value in itertools.product(fields.split(), ODD_VALUES):
        try:
            quantised_checkpoint({"quantization_config": {**plain, field: value}})
        except ModelError as error:
            assert len(str(error)) < 300


@pytest.mark.usefixtures("hopper")
def test_products_in_fp8_are_other_numerics(tmp_path: Path) -> None:
    make_model(tmp_path, "llama2", **SHAPE)
    floats, fp8 = (
        make_runner(tmp_path, cpu_backend="torch", quantization=name).model.numerics
        for name in ("none", "fp8")
    )
    assert (floats.factors, fp8.factors) == ("float32", "fp8_e4m3")
    assert floats != fp8


@pytest.mark.parametrize("name", ["auto", "fp8"])
def test_a_card_without_our_kernels_decodes_what_it_could_hold(name: str, tmp_path: Path) -> None:
    make_model(tmp_path, "llama2", quantization_config=FP8, **SHAPE)
    source = open_model(ModelConfig(model=str(tmp_path)), ignore_progress)
    config = ModelConfig(model=str(tmp_path), quantization=name)
    assert choose_quantization(config, source, "", HOPPER) is not None
    if name == "auto":
        assert choose_quantization(config, source, "", HOPPER, has_kernels=False) is None
    else:
        with pytest.raises(ModelError, match="its kernels are Triton's"):
            choose_quantization(config, source, "", HOPPER, has_kernels=False)


@pytest.mark.parametrize("cpu_backend", ["native", "torch"])
@pytest.mark.parametrize("value", [0.0, 0.5])
def test_a_bias_of_zeroes_that_the_model_has_not_is_left_out(
    value: float, cpu_backend: str, tmp_path: Path
) -> None:
    """AutoGPTQ gives each of its layers one."""
    if cpu_backend == "native":
        skip_without_native_kernels()
    save_quantised(tmp_path, "llama2", *FORMS["by row"])
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.0.self_attn.q_proj.bias"
    save_file(tensors | {name: torch.full((64,), value)}, tmp_path / "model.safetensors")
    if value:
        with pytest.raises(ModelError, match="unexpected weight"):
            make_runner(tmp_path, cpu_backend=cpu_backend)
    else:
        make_runner(tmp_path, cpu_backend=cpu_backend)

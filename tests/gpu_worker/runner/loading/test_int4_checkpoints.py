"""Checkpoints of AWQ and GPTQ: decoded on a CPU, and held in 4 bits where there are kernels."""

import json
import logging
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from signalbox_worker.config import ModelConfig, ModelError
from signalbox_worker.device.parallel_group import ParallelGroup
from signalbox_worker.files.quantised.configuration import quantised_checkpoint
from signalbox_worker.files.quantised.form import QuantisedForm
from signalbox_worker.models.layers import Placement
from signalbox_worker.models.layers.linear import QKVParallelLinear, RowParallelLinear
from signalbox_worker.models.layers.matrix_formats import matrix_format
from signalbox_worker.runner.loading import loaded_model
from signalbox_worker.runner.loading.model_source import weight_sizes
from tests.gpu_worker.model_runners import (
    WEIGHTS,
    assert_greedy,
    last_logits,
    make_prompts,
    make_runner,
    remove_files,
)
from tests.gpu_worker.quantised_models import SHAPE, Encode, in_awq, in_gptq, save_quantised
from tests.gpu_worker.tiny_models import make_model

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
FORMS: dict[str, tuple[Encode, dict[str, Any]]] = {
    "awq": (partial(in_awq, group_size=64), AWQ),
    "awq, of 32": (partial(in_awq, group_size=32), AWQ | {"group_size": 32}),
    "gptq": (partial(in_gptq, group_size=128, is_symmetric=True), GPTQ),  # 192 are 1.5 groups
    "gptq of rows": (partial(in_gptq, group_size=512), GPTQ | {"group_size": -1, "sym": False}),
    "gptq_v2, in another order": (
        partial(in_gptq, group_size=64, is_second=True, is_reordered=True),
        GPTQ | {"group_size": 64, "checkpoint_format": "gptq_v2", "desc_act": True, "sym": False},
    ),
}
AMPERE, TURING = (8, 0), (7, 5)
PROMPTS = make_prompts(30, 31)


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs the references of ops as if this were a card."""
    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: AMPERE)


@pytest.mark.parametrize("form", FORMS)
def test_pytorch_decodes_the_weights_on_a_cpu(
    form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    reference = save_quantised(tmp_path, "llama2", *FORMS[form])
    with caplog.at_level(logging.INFO):
        runner = make_runner(tmp_path, cpu_backend="torch")
    method = form.partition(",")[0].split()[0].removesuffix("_v2")
    assert f"weights: {method} of the checkpoint, decoded to float32, " in caplog.text
    assert_greedy(runner, reference, PROMPTS)


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("family", ["qwen2", "gemma3"])
@pytest.mark.parametrize("form", FORMS)
def test_a_card_holds_four_bits(form: str, family: str, tmp_path: Path) -> None:
    """A fused layer of which a part stays in floats is decoded."""
    reference = save_quantised(tmp_path, family, *FORMS[form], stays="layers.1.mlp.up")
    runner = make_runner(tmp_path, cpu_backend="torch")
    decoded = make_runner(tmp_path, cpu_backend="torch", quantization="none")
    layers = [layer.attention for layer in runner.executor.loaded.model.layers]
    assert all(layer.qkv.is_quantised and layer.out.is_quantised for layer in layers)
    of_layers = [layer.feed_forward for layer in runner.executor.loaded.model.layers]
    assert [one.gate_up.is_quantised for one in of_layers] == [True, False, True]
    assert runner.executor.loaded.weights_bytes < 0.5 * decoded.executor.loaded.weights_bytes
    assert_greedy(runner, reference, PROMPTS)


@pytest.mark.usefixtures("ampere", "triton_device")
@pytest.mark.parametrize("form", ["awq", "gptq_v2, in another order"])
def test_kernels_give_the_logits_of_the_decoded_model(form: str, tmp_path: Path) -> None:
    reference = save_quantised(tmp_path, "llama2", *FORMS[form], num_hidden_layers=1)
    with torch.no_grad():
        expected = reference(torch.tensor([PROMPTS[0]])).logits[0, -1]
    runner = make_runner(tmp_path, cpu_backend="torch")
    actual = last_logits(runner, *PROMPTS, chunks=(29, 1))
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("ampere")
@pytest.mark.parametrize("name", ["awq", "gptq"])
def test_made_up_weights_are_held_in_four_bits(name: str, tmp_path: Path) -> None:
    make_model(tmp_path, "mixtral", **SHAPE)
    remove_files(tmp_path, *WEIGHTS)
    runner = make_runner(tmp_path, cpu_backend="torch", load_format="dummy", quantization=name)
    assert runner.executor.loaded.model.layers[0].attention.qkv.is_quantised
    logits = last_logits(runner, *PROMPTS, chunks=(29, 1))
    assert logits.isfinite().all() and logits.std() > 1e-3


def test_sizes_count_values_not_codes(tmp_path: Path) -> None:
    reference = save_quantised(tmp_path, "llama2", *FORMS["gptq"])
    sizes = weight_sizes(ModelConfig(model=str(tmp_path)))
    assert sizes is not None
    num_values = sum(parameter.numel() for parameter in reference.parameters())
    assert sizes.bytes_in("bfloat16") == 2 * num_values
    assert sizes.bytes_in("gptq") == (tmp_path / "model.safetensors").stat().st_size


@pytest.mark.parametrize("group_size", [32, 128])
@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_hold_shares(num_ranks: int, group_size: int) -> None:
    """Shares of 64 columns, of groups of 128, and K and V heads that ranks share."""
    weights = {name: torch.randn(rows, 256) / 8 for name, rows in (("q", 64), ("k", 32), ("v", 32))}
    encoded = {name: in_awq(weight, group_size) for name, weight in weights.items()}
    down, decoded_down = in_awq(torch.randn(64, 256) / 8, group_size)
    form = form_of(AWQ | {"group_size": group_size})
    placement = Placement(torch.device("cpu"), torch.float32)
    x, total, heads = torch.randn(3, 256), torch.zeros(3, 64), []
    for rank in range(num_ranks):
        group = ParallelGroup(rank, num_ranks)
        row = RowParallelLinear(
            in_features=256, out_features=64, bias=False, placement=placement, group=group
        )
        qkv = QKVParallelLinear(
            hidden_size=256,
            num_heads=4,
            num_kv_heads=2,
            head_size=16,
            bias=False,
            placement=placement,
            group=group,
        )
        for layer in (row, qkv):
            layer.hold_as(matrix_format(form))
        row.load_part(down, "all")
        for name, (tensors, _) in encoded.items():
            qkv.load_part(tensors, name)
        row.finish()
        total += row._apply(x[:, group.own(256 // num_ranks)])
        heads.append(qkv(x))
    torch.testing.assert_close(total, F.linear(x, decoded_down), rtol=1e-5, atol=1e-5)
    q = torch.cat([each[:, : 64 // num_ranks] for each in heads], dim=1)
    torch.testing.assert_close(q, F.linear(x, encoded["q"][1]), rtol=1e-5, atol=1e-5)
    last_v = F.linear(x, encoded["v"][1])[:, -16:]
    torch.testing.assert_close(heads[-1][:, -16:], last_v, rtol=1e-5, atol=1e-5)


def form_of(described: dict[str, Any]) -> QuantisedForm:
    checkpoint = quantised_checkpoint({"quantization_config": described})
    assert checkpoint is not None
    return checkpoint.forms[0]


def row_parallel(num_ranks: int, form: Any, *, in_features: int = 128) -> RowParallelLinear:
    layer = RowParallelLinear(
        in_features=in_features,
        out_features=32,
        bias=False,
        placement=Placement(torch.device("cpu"), torch.float32),
        group=ParallelGroup(0, num_ranks),
    )
    layer.hold_as(matrix_format(form))
    return layer


def test_columns_in_another_order_are_not_divided() -> None:
    tensors, _ = in_gptq(torch.randn(32, 128), 32, is_reordered=True)
    form = form_of(GPTQ | {"group_size": 32})
    with pytest.raises(ModelError, match=r"desc_act.* are not divided; use another"):
        row_parallel(2, form).load_part(tensors, "all")
    tensors["g_idx"] = tensors["g_idx"].clone().fill_(1)
    with pytest.raises(ModelError, match="groups that are not of 32 columns"):
        row_parallel(1, form).load_part(tensors, "all")


def test_shares_that_are_too_small_for_groups_are_refused() -> None:
    form = form_of(GPTQ | {"group_size": 32})
    with pytest.raises(ModelError, match="groups of 32, and 24 columns for each shard"):
        row_parallel(16, form, in_features=384).finish()


def test_parts_in_different_orders_are_refused(tmp_path: Path, ampere: None) -> None:
    def encode(weight: torch.Tensor) -> Any:
        return in_gptq(weight, 64, is_second=True, is_reordered=weight.shape[0] == 256)

    save_quantised(tmp_path, "llama2", encode, FORMS["gptq_v2, in another order"][1])
    with pytest.raises(ModelError, match="columns in different orders"):
        make_runner(tmp_path, cpu_backend="torch")


@pytest.mark.parametrize(
    ("described", "reason"),
    [
        (AWQ | {"bits": 8}, "awq with bits '8', which is not supported; use one with 4"),
        (AWQ | {"version": "GEMV"}, "awq with version 'GEMV'"),
        (AWQ | {"group_size": 24}, "in groups of 24; use one with groups of a multiple of 16"),
        (GPTQ | {"bits": 3}, "gptq with bits '3'"),
        (GPTQ | {"checkpoint_format": "marlin"}, "gptq with checkpoint_format 'marlin'"),
        (GPTQ | {"is_marlin_format": True}, "gptq with is_marlin_format 'True'"),
        (GPTQ | {"dynamic": {"+:.*down.*": {"bits": 3}}}, "gptq with bits '3'"),
    ],
)
def test_other_packings_are_refused_before_weights_are_read(
    described: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    make_model(tmp_path, "llama2", quantization_config=described)
    remove_files(tmp_path, *WEIGHTS)
    with pytest.raises(ModelError, match=reason):
        make_runner(tmp_path, load_format="dummy")


def test_matrices_that_a_rule_leaves_out_stay_as_they_are(tmp_path: Path) -> None:
    described = GPTQ | {"dynamic": {"-:.*layers\\.1\\.mlp\\.up.*": {}}}
    encode = FORMS["gptq"][0]
    reference = save_quantised(tmp_path, "llama2", encode, described, stays="layers.1.mlp.up")
    assert_greedy(make_runner(tmp_path), reference, PROMPTS)


@pytest.mark.parametrize(
    ("file", "form", "described"),
    [
        ("quantize_config.json", "gptq", {"bits": 4, "group_size": 128, "sym": True}),
        ("quantize_config.json", "gptq", {"bits": 4, "group_size": 128, "quant_method": "gptq"}),
        ("quant_config.json", "awq", {"w_bit": 4, "q_group_size": 64, "zero_point": True}),
    ],
)
def test_a_file_beside_an_old_config_is_read(
    file: str, form: str, described: dict[str, Any], tmp_path: Path
) -> None:
    """Unless config.json says it, too, which then holds."""
    reference = save_quantised(tmp_path, "llama2", *FORMS[form])
    config = json.loads((tmp_path / "config.json").read_text())
    del config["quantization_config"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / file).write_text(json.dumps(described))
    assert_greedy(make_runner(tmp_path, cpu_backend="torch"), reference, PROMPTS)
    current = config | {"quantization_config": FORMS[form][1]}
    (tmp_path / "config.json").write_text(json.dumps(current))
    (tmp_path / file).write_text(json.dumps({"bits": 3}))
    assert_greedy(make_runner(tmp_path, cpu_backend="torch"), reference, PROMPTS)


def test_tensors_that_the_configuration_leaves_out_are_refused(tmp_path: Path) -> None:
    described = GPTQ | {"dynamic": {"-:.*layers\\.1\\.mlp\\.up.*": {}}}
    save_quantised(tmp_path, "llama2", FORMS["gptq"][0], described)
    with pytest.raises(ModelError, match=r"layers.1.mlp.up_proj has qweight, but .* leaves it out"):
        make_runner(tmp_path)


def test_a_rule_may_give_a_matrix_other_bits_and_groups(tmp_path: Path) -> None:
    """8 bits in groups of 32 beside 4 bits in groups of 128; V stays apart from Q and K."""
    other = {"bits": 8, "group_size": 32}
    described = GPTQ | {"sym": False, "dynamic": {"+:.*(v_proj|down_proj)": other}}

    def encode(weight: torch.Tensor, name: str) -> Any:
        is_other = "v_proj" in name or "down_proj" in name
        return in_gptq(weight, 32 if is_other else 128, bits=8 if is_other else 4)

    reference = save_quantised(tmp_path, "llama2", encode, described)
    for backend in ("auto", "torch"):
        runner = make_runner(tmp_path, cpu_backend=backend, dtype="float32")
        assert_greedy(runner, reference, PROMPTS)


@pytest.mark.usefixtures("ampere")
def test_a_head_in_four_bits_is_decoded(tmp_path: Path) -> None:
    described = GPTQ | {"group_size": 64, "lm_head": True}
    encode = partial(in_gptq, group_size=64)
    reference = save_quantised(
        tmp_path, "llama2", encode, described, extra="lm_head", vocab_size=104
    )
    assert_greedy(make_runner(tmp_path, cpu_backend="torch"), reference, make_prompts(20))


@pytest.mark.parametrize(
    ("capability", "described", "name", "reason"),
    [
        (None, None, "awq", "the checkpoint is not quantised; use 'auto' or 'int8'"),
        (None, None, "fp8", "compute capability 8.9, and this is a CPU; use 'auto' or 'int8'"),
        (None, AWQ, "awq", "and this is a CPU; use 'auto', which decodes the weights"),
        (TURING, GPTQ, "gptq", "compute capability 8.0, and this one has 7.5; use 'auto', which"),
        (AMPERE, None, "gptq", "the checkpoint is not quantised; use 'auto' or 'fp8'"),
        (AMPERE, GPTQ, "awq", "but the checkpoint is in gptq; use 'auto'"),
    ],
)
def test_what_cannot_be_is_refused_by_name(
    capability: Any,
    described: Any,
    name: str,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(loaded_model, "compute_capability", lambda device: capability)
    make_model(
        tmp_path, "llama2", **({} if described is None else {"quantization_config": described})
    )
    with pytest.raises(ModelError, match=f"quantization is '{name}', .*{reason}"):
        make_runner(tmp_path, cpu_backend="torch", quantization=name)

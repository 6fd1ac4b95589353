"""Values of the tensors of recurrent layers, as programs take them, beside transformers' layers."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from signalbox_kernels.floats import to_float32
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.models import model_spec
from signalbox_worker.runner.loading.hf_directory import DirectorySource
from signalbox_worker.runner.native.hybrid_tensors import with_native_names
from signalbox_worker.runner.native.native_model import stored_tensors

_SIZES = {
    "vocab_size": 97, "hidden_size": 32, "intermediate_size": 24, "num_attention_heads": 4,
    "num_key_value_heads": 2, "num_hidden_layers": 2,
}  # fmt: skip
_DELTA = {
    "linear_key_head_dim": 16, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
    "linear_num_value_heads": 4, "num_experts": 2, "num_experts_per_tok": 1, "head_dim": 16,
    "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip
_MAMBA = {
    "mamba_n_heads": 4, "mamba_d_state": 16, "num_local_experts": 0, "shared_intermediate_size": 24,
    "layer_types": ["linear_attention", "full_attention"],
}  # fmt: skip


def loaded(path: Path, architecture: str, fields: dict[str, Any]) -> tuple[Any, dict[str, Tensor]]:
    """Returns a random model of transformers, and its tensors by a program's names."""
    kind: Any = getattr(transformers, architecture)
    torch.manual_seed(0)
    model = kind(kind.config_class(**_SIZES | fields)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0, 0.5)
    model.save_pretrained(path)
    config = model_spec({"architectures": [architecture]}).read_config(
        {"architectures": [architecture], **_SIZES, **fields}
    )
    stored = stored_tensors(DirectorySource(path, name="x"), config, lambda _: None)
    return model, {name: torch.from_numpy(to_float32(one.read())) for name, one in stored.items()}


def test_fused_projections_of_qwen3_next_are_those_that_its_layer_cuts(tmp_path: Path) -> None:
    model, found = loaded(tmp_path, "Qwen3NextForCausalLM", _DELTA)
    layer, prefix = model.model.layers[0].linear_attn, "model.layers.0.recurrent"
    rows = torch.randn(1, 5, 32)
    with torch.no_grad():
        fused = layer.in_proj_qkvz(rows), layer.in_proj_ba(rows)
        parts = [one.reshape(5, -1) for one in layer.fix_query_key_value_ordering(*fused)]
    query, key, value, *rest = parts
    expected = {"qkv": torch.cat((query, key, value), dim=-1)}
    expected |= dict(zip(("z", "b", "a"), rest, strict=True))
    for name, wanted in expected.items():
        torch.testing.assert_close(rows[0] @ found[f"{prefix}.in_proj_{name}.weight"].T, wanted)
    torch.testing.assert_close(found[f"{prefix}.A"], -layer.A_log.detach().exp())
    assert torch.equal(found[f"{prefix}.conv1d.weight"], layer.conv1d.weight.detach()[:, 0])
    assert torch.equal(found[f"{prefix}.dt_bias"], layer.dt_bias.detach())


def test_dense_feed_forward_of_granite_is_the_one_of_all_tokens(tmp_path: Path) -> None:
    model, found = loaded(tmp_path, "GraniteMoeHybridForCausalLM", _MAMBA)
    layer, prefix = model.model.layers[0], "model.layers.0."
    gate, up = layer.shared_mlp.input_linear.weight.detach().chunk(2)
    assert torch.equal(found[f"{prefix}mlp.gate_proj.weight"], gate)
    assert torch.equal(found[f"{prefix}mlp.up_proj.weight"], up)
    assert torch.equal(found[f"{prefix}recurrent.D"], layer.mamba.D.detach())


def test_fused_projection_of_other_rows_is_refused_by_its_name() -> None:
    fields = {"architectures": ["Qwen3NextForCausalLM"], **_SIZES, **_DELTA}
    config = model_spec(fields).read_config(fields)
    name = "model.layers.0.linear_attn.in_proj_ba.weight"
    wrong = {name: StoredTensor((7, 32), lambda: pytest.fail("it is read"))}
    with pytest.raises(ModelError, match="in_proj_ba"):
        with_native_names(wrong, config)

"""Fields of families with recurrent layers, which a GGUF file gives no heads of K and V."""

from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.families import (
    SIGMOID,
    Names,
    Reader,
    Shapes,
    experts,
    granite,
    of_each_layer,
    qwen2_moe,
    routed_by_bias,
)
from signalbox_worker.files.checkpoints.gguf.fields import GGUFFields

UNROTATED = ("nemotron_h", "nemotron_h_moe")
"""Architectures of which no layer rotates, whatever a file says of rotation."""
_PERIOD = 4
"""Layers of which the last one attends, where a file of Qwen3.5 does not say it."""
IN_TURN = "linear_value_heads_in_turn"
"""Field of Qwen3.5, which config.json does not have: whether value head i reads key head i % their
number."""


def _layer_types(fields: GGUFFields, shapes: Shapes, recurrent: str) -> list[str]:
    """Returns the kind of each layer, of which those without heads are recurrent."""
    counts = of_each_layer(fields, "attention.head_count_kv", shapes["num_hidden_layers"])
    if len({*counts} - {0}) > 1:
        raise ModelError(
            "its attention.head_count_kv differs between layers that attend, which is not "
            "supported; use the model's safetensors"
        )
    return ["full_attention" if count else recurrent for count in counts]


def _has_bias(tensors: Names, part: str) -> bool:
    return any(name.endswith(f".{part}.bias") for name in tensors)


def _lfm2(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    return {
        "layer_types": _layer_types(fields, shapes, "conv"),
        "norm_eps": shapes["rms_norm_eps"],
        "block_auto_adjust_ff_dim": False,  # the file has the inner columns as they are
        "conv_L_cache": fields.whole_of_model("shortconv.l_cache"),
        "conv_bias": _has_bias(tensors, "shortconv.conv"),
    }


def _lfm2_moe(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    if fields.whole_of_model("expert_gating_func") != SIGMOID:
        raise ModelError("its expert_gating_func is not sigmoid's, which is not supported")
    return {
        **experts(fields, normalises=True),
        **_lfm2(fields, shapes, tensors),
        "num_dense_layers": fields.whole_of_model("leading_dense_block_count", 0),
        "use_expert_bias": _has_bias(tensors, "exp_probs_b"),
    }


def _heads(fields: GGUFFields) -> tuple[int, int]:
    """Returns the number of value heads, and the columns of one. Raises ModelError if their columns
    are not divided by them."""
    columns = fields.size_of_model("ssm.inner_size")
    heads = fields.size_of_model("ssm.time_step_rank")
    if columns % heads:
        raise ModelError(f"its ssm.inner_size {columns} is no multiple of its {heads} value heads")
    return heads, columns // heads


def _granite_hybrid(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """Returns the configuration of Granite 4 H, which calls a feed-forward without experts the
    shared one."""
    num_heads, head_size = _heads(fields)
    num_experts = fields.whole_of_model("expert_count", 0)
    shared = fields.whole_of_model("expert_shared_feed_forward_length", 0)
    return {
        **granite(fields, shapes),
        "layer_types": _layer_types(fields, shapes, "linear_attention"),
        "position_embedding_type": (
            "rope" if fields.of_model("rope.scaling.finetuned", True) else "nope"
        ),
        "num_local_experts": num_experts,
        "num_experts_per_tok": fields.whole_of_model("expert_used_count", 0),
        "shared_intermediate_size": shared or (not num_experts) * shapes["intermediate_size"],
        "mamba_n_heads": num_heads,
        "mamba_d_head": head_size,
        "mamba_expand": num_heads * head_size // shapes["hidden_size"],
        "mamba_n_groups": fields.whole_of_model("ssm.group_count"),
        "mamba_d_state": fields.whole_of_model("ssm.state_size"),
        "mamba_d_conv": fields.whole_of_model("ssm.conv_kernel"),
        "mamba_conv_bias": _has_bias(tensors, "ssm_conv1d"),
        "mamba_proj_bias": _has_bias(tensors, "ssm_in"),
    }


def _nemotron_h(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """Returns the configuration of Nemotron-H: a layer with a feed-forward has nothing else."""
    num_layers, mixed = shapes["num_hidden_layers"], fields.kind == "nemotron_h_moe"
    widths = of_each_layer(fields, "feed_forward_length", num_layers)
    kinds = _layer_types(fields, shapes, "linear_attention")
    num_heads, head_size = _heads(fields)
    fields.of_model("attention.layer_norm_epsilon", None)  # llama.cpp takes the other one
    return {
        **(_nemotron_experts(fields) if mixed else {}),
        "layers_block_type": [
            ("moe" if mixed else "mlp") if width else kind
            for kind, width in zip(kinds, widths, strict=True)
        ],
        "layer_norm_epsilon": shapes["rms_norm_eps"],
        "rope_parameters": None,  # no layer rotates
        "mlp_bias": _has_bias(tensors, "ffn_up"),
        "use_bias": _has_bias(tensors, "ssm_in"),
        "use_conv_bias": _has_bias(tensors, "ssm_conv1d"),
        "mamba_num_heads": num_heads,
        "mamba_head_dim": head_size,
        "n_groups": fields.whole_of_model("ssm.group_count"),
        "ssm_state_size": fields.whole_of_model("ssm.state_size"),
        "conv_kernel": fields.whole_of_model("ssm.conv_kernel"),
    }


def _nemotron_experts(fields: GGUFFields) -> dict[str, Any]:
    return {
        **routed_by_bias(fields),
        "moe_shared_expert_intermediate_size": fields.whole_of_model(
            "expert_shared_feed_forward_length"
        ),
        "moe_latent_size": fields.whole_of_model("moe_latent_size", 0) or None,
    }


def _gated_delta(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """Returns the configuration of the gated delta rule, whose value heads stand in turn in files
    of Qwen3.5 alone."""
    num_heads, head_size = _heads(fields)
    return {
        "full_attention_interval": fields.whole_of_model("full_attention_interval", _PERIOD),
        "linear_conv_kernel_dim": fields.whole_of_model("ssm.conv_kernel"),
        "linear_key_head_dim": fields.whole_of_model("ssm.state_size"),
        "linear_num_key_heads": fields.whole_of_model("ssm.group_count"),
        "linear_num_value_heads": num_heads,
        "linear_value_head_dim": head_size,
        IN_TURN: fields.kind != "qwen3next",
        "rope_parameters": {"partial_rotary_factor": 1.0, **shapes["rope_parameters"]},
    }


def _qwen_next_moe(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    mixture = qwen2_moe(fields, shapes, tensors)
    return {**_gated_delta(fields, shapes, tensors), **mixture, "norm_topk_prob": True}


HYBRIDS: dict[str, Reader] = {
    "granitehybrid": _granite_hybrid,
    "lfm2": _lfm2,
    "lfm2moe": _lfm2_moe,
    **dict.fromkeys(UNROTATED, _nemotron_h),
    "qwen35": _gated_delta,
    "qwen35moe": _qwen_next_moe,
    "qwen3next": _qwen_next_moe,
}
"""Readers by architectures of GGUF files."""

"""Fields that the config.json of a family has beside those of Llama, from a GGUF file.

Where a file does not say something, it is what llama.cpp's loader takes for the architecture.
"""

from collections.abc import Callable, Collection, Mapping
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.fields import GGUFFields

_SOFTMAX, SIGMOID = 1, 2
"""Values of expert_gating_func."""
_GEMMA4_PERIOD = 6
_FULL, _SLIDING = "full_attention", "sliding_attention"
_STILL = 1e20
"""A divisor that leaves no rotation."""
_COHERE2_PERIOD, _GPT_OSS_PERIOD, _OLMO3_PERIOD, _SMOLLM3_PERIOD = 4, 2, 4, 4
Shapes = Mapping[str, Any]
Names = Collection[str]
Reader = Callable[[GGUFFields, Shapes, Names], dict[str, Any]]


def layer_types(fields: GGUFFields, num_layers: int, period: int) -> list[str]:
    """Returns each layer's attention type.

    A sliding_window_pattern that is a number N makes every N-th layer attend to all positions;
    a list has one flag for each layer, true if its window slides.
    """
    pattern = fields.each_of_model("attention.sliding_window_pattern", period)
    if isinstance(pattern, list):
        slides = [bool(each) for each in pattern]
        if len(slides) != num_layers:
            raise ModelError(f"its sliding_window_pattern is not of {num_layers} layers")
    else:
        period = fields.whole_of_model("attention.sliding_window_pattern", period)
        slides = [not period or (index + 1) % period != 0 for index in range(num_layers)]
    return [_SLIDING if each else _FULL for each in slides]


def _sliding(fields: GGUFFields, shapes: Shapes, period: int) -> dict[str, Any]:
    return {
        "sliding_window": fields.whole_of_model("attention.sliding_window"),
        "layer_types": layer_types(fields, shapes["num_hidden_layers"], period),
    }


def experts(fields: GGUFFields, *, normalises: bool) -> dict[str, Any]:
    """Returns what describes a mixture, by the names of all families.

    Args:
        normalises: whether the shares of the chosen experts are made to sum to 1.
    """
    num_experts = fields.whole_of_model("expert_count")
    width = fields.whole_of_model("expert_feed_forward_length", 0)
    return {
        **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts"), num_experts),
        "num_experts_per_tok": fields.whole_of_model("expert_used_count"),
        "norm_topk_prob": normalises,
        "moe_intermediate_size": width or fields.whole_of_model("feed_forward_length"),
    }


def qwen2_moe(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """The first files give all experts' widths by that of a dense layer."""
    found, dense = experts(fields, normalises=False), shapes["intermediate_size"]
    if not fields.whole_of_model("expert_feed_forward_length", 0):
        found["moe_intermediate_size"] = dense // max(1, found["num_experts_per_tok"])
    shared = fields.whole_of_model("expert_shared_feed_forward_length", 0)
    return {**found, "shared_expert_intermediate_size": shared or dense}


def _olmoe(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    return experts(fields, normalises=False)


def granite(fields: GGUFFields, shapes: Shapes) -> dict[str, Any]:
    """A scale of attention that is missing or 0 is that of the head size."""
    of_heads = shapes["head_dim"] ** -0.5
    return {
        "attention_multiplier": fields.real_of_model("attention.scale", 0.0) or of_heads,
        "embedding_multiplier": fields.real_of_model("embedding_scale", 0.0) or 1.0,
        "residual_multiplier": fields.real_of_model("residual_scale", 0.0) or 1.0,
        "logits_scaling": fields.real_of_model("logit_scale", 0.0) or 1.0,
    }


def _granite_moe(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    shared = fields.whole_of_model("expert_shared_feed_forward_length", 0)
    kind = {"architectures": ["GraniteMoeSharedForCausalLM"], "shared_intermediate_size": shared}
    return experts(fields, normalises=True) | granite(fields, shapes) | (kind if shared else {})


def _smollm3(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    layers = range(1, shapes["num_hidden_layers"] + 1)
    return {"no_rope_layers": [int(one % _SMOLLM3_PERIOD != 0) for one in layers]}


def _olmo2(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """A window says that it is OLMo 3, of which the windows' layers have no scaled rotation."""
    if not fields.whole_of_model("attention.sliding_window", 0):
        return {}
    full = shapes["rope_parameters"]
    theta = fields.real_of_model("rope.freq_base_swa", full["rope_theta"])
    return {
        "architectures": ["Olmo3ForCausalLM"],
        **_sliding(fields, shapes, _OLMO3_PERIOD),
        "rope_parameters": {_FULL: full, _SLIDING: {"rope_type": "default", "rope_theta": theta}},
    }


def _mistral3(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """Queries whose scale grows with the position make it Ministral 3."""
    beta = fields.real_of_model("attention.temperature_scale", 0.0)
    if not beta:
        return {"architectures": ["MistralForCausalLM"], "sliding_window": None}
    rotation = _with_magnitude(fields, shapes, unit=1.0)
    return {"rope_parameters": {**rotation, "llama_4_scaling_beta": beta}, "sliding_window": None}


def _glm4_moe(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    return {**routed_by_bias(fields), "use_qk_norm": "blk.0.attn_q_norm.weight" in tensors}


def routed_by_bias(fields: GGUFFields) -> dict[str, Any]:
    """Returns what describes a mixture in groups with shared experts, of DeepSeek V3's kind."""
    if fields.whole_of_model("expert_gating_func", 0) not in (0, SIGMOID):
        raise ModelError("its expert_gating_func is not sigmoid's, which is not supported")
    return _grouped(fields)


def _grouped(fields: GGUFFields) -> dict[str, Any]:
    normalises = fields.of_model("expert_weights_norm", False)
    return {
        **experts(fields, normalises=bool(normalises)),
        "n_group": fields.whole_of_model("expert_group_count", 0) or 1,
        "topk_group": fields.whole_of_model("expert_group_used_count", 0) or 1,
        "n_shared_experts": fields.whole_of_model("expert_shared_count", 0),
        "first_k_dense_replace": fields.whole_of_model("leading_dense_block_count", 0),
        "routed_scaling_factor": fields.real_of_model("expert_weights_scale", 0.0) or 1.0,
    }


def _deepseek2(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """Latent attention: its keys and values have one head in the file, and all in config.json."""
    rotated = fields.whole_of_model("rope.dimension_count")
    whole = fields.whole_of_model("attention.key_length_mla", 0)
    size = fields.whole_of_model("attention.value_length_mla", 0)
    if not (whole and size):
        raise ModelError(
            "it is of a converter before latent attention, which is not supported; fetch a file "
            "that has attention.key_length_mla"
        )
    biased = any(name.endswith(".exp_probs_b.bias") for name in tensors)
    usual = SIGMOID if biased else _SOFTMAX
    sigmoid = (fields.whole_of_model("expert_gating_func", 0) or usual) == SIGMOID
    grouped = routed_by_bias(fields) if sigmoid else _grouped(fields)
    kind = "DeepseekV3ForCausalLM" if sigmoid else "DeepseekV2ForCausalLM"
    return {
        **grouped,
        "architectures": [kind],
        "topk_method": "greedy" if grouped["n_group"] == 1 else "group_limited_greedy",
        "num_key_value_heads": shapes["num_attention_heads"],
        "head_dim": rotated,
        "kv_lora_rank": fields.whole_of_model("attention.kv_lora_rank"),
        "q_lora_rank": fields.whole_of_model("attention.q_lora_rank", 0) or None,
        "qk_rope_head_dim": rotated,
        "qk_nope_head_dim": whole - rotated,
        "v_head_dim": size,
        "rope_parameters": _with_magnitude(fields, shapes, unit=0.1),
    }


def _with_magnitude(fields: GGUFFields, shapes: Shapes, *, unit: float) -> dict[str, Any]:
    """Returns a rotation whose YaRN scales scores in place of queries and keys.

    Args:
        unit: what a converter multiplies config.json's number with.
    """
    scaling = fields.real_of_model("rope.scaling.yarn_log_multiplier", 0.0)
    rotation = dict(shapes["rope_parameters"])
    if rotation["rope_type"] == "yarn" and scaling:
        del rotation["attention_factor"]
        rotation |= dict.fromkeys(("mscale", "mscale_all_dim"), round(scaling / unit, 6))
    return rotation


def _gpt_oss(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    theta = shapes["rope_parameters"]["rope_theta"]
    if fields.real_of_model("rope.freq_base_swa", theta) != theta:
        raise ModelError("GPT-OSS with a rope.freq_base_swa of its own is not supported")
    of_experts = experts(fields, normalises=True)
    return {
        **of_experts,
        **_sliding(fields, shapes, _GPT_OSS_PERIOD),
        "intermediate_size": of_experts["moe_intermediate_size"],
        "rope_parameters": {**shapes["rope_parameters"], "truncate": False},
    }


def _cohere2(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    return {
        **_sliding(fields, shapes, _COHERE2_PERIOD),
        "layer_norm_eps": shapes["rms_norm_eps"],
        "logit_scale": fields.real_of_model("logit_scale"),
    }


def _gemma4(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    """Layers that see all have heads of another size, perhaps fewer K, and perhaps no V."""
    kinds = layer_types(fields, shapes["num_hidden_layers"], _GEMMA4_PERIOD)
    full = kinds.index(_FULL) if _FULL in kinds else 0
    sliding = kinds.index(_SLIDING) if _SLIDING in kinds else full
    kv_heads = of_each_layer(fields, "attention.head_count_kv", len(kinds))
    widths = of_each_layer(fields, "feed_forward_length", len(kinds))
    size = fields.whole_of_model("attention.key_length_swa")
    for name in ("attention.value_length_swa", "rope.dimension_count_swa"):
        if fields.whole_of_model(name, size) != size:
            raise ModelError(f"its {name} is not attention.key_length_swa, which is not supported")
    mixed = fields.whole_of_model("expert_count", 0) > 0
    return {
        **_sliding(fields, shapes, _GEMMA4_PERIOD),
        "head_dim": size,
        "global_head_dim": shapes["head_dim"],
        "num_key_value_heads": kv_heads[sliding],
        "num_global_key_value_heads": kv_heads[full],
        "attention_k_eq_v": f"blk.{full}.attn_v.weight" not in tensors,
        "num_kv_shared_layers": fields.whole_of_model("attention.shared_kv_layers", 0),
        "hidden_size_per_layer_input": fields.whole_of_model("embedding_length_per_layer_input", 0),
        "vocab_size_per_layer_input": shapes["vocab_size"],
        "final_logit_softcapping": fields.real_of_model("final_logit_softcapping", 0.0) or None,
        "intermediate_size": widths[0],
        "use_double_wide_mlp": widths[-1] != widths[0],
        "rope_parameters": _gemma4_rotations(fields, shapes["rope_parameters"]),
        "enable_moe_block": mixed,
        "top_k_experts": fields.whole_of_model("expert_used_count", 0),
        **(experts(fields, normalises=True) if mixed else {}),
    }


def of_each_layer(fields: GGUFFields, key: str, num_layers: int) -> list[int]:
    """Returns a number for each layer, where the file may have one for all."""
    value = fields.each_of_model(key)
    found = value if isinstance(value, list) else [value] * num_layers
    if len(found) != num_layers or not all(type(one) is int for one in found):
        raise ModelError(f"its {key} is no whole number for each of {num_layers} layers")
    return found


def _gemma4_rotations(fields: GGUFFields, full: Mapping[str, Any]) -> dict[str, Any]:
    """Divisors say which frequencies of the layers that see all rotate, which are the first."""
    divisors = full.get("divisors", [1.0])
    turned = divisors.count(1.0)
    if divisors[:turned] != [1.0] * turned or any(one < _STILL for one in divisors[turned:]):
        raise ModelError("its rope_freqs are not those of a part of each head; fetch another file")
    proportional = {"rope_type": "proportional", "partial_rotary_factor": turned / len(divisors)}
    return {
        _FULL: {**proportional, "rope_theta": full["rope_theta"]},
        _SLIDING: {
            "rope_type": "default",
            "rope_theta": fields.real_of_model("rope.freq_base_swa", full["rope_theta"]),
        },
    }


def _encoder(activation: str) -> Reader:
    """Returns the reader of a family whose tokens see those behind them too."""

    def read(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
        if fields.of_model("attention.causal", False):
            raise ModelError("its attention.causal is true, which is not supported of an encoder")
        for name in ("add_sep_token", "normalizer.lowercase", "normalizer.strip_accents"):
            fields.get(f"tokenizer.ggml.{name}", None)  # which its tokenizer reads
        usual = 2 if "token_types.weight" in tensors else 0
        return {
            "hidden_act": activation,
            "layer_norm_eps": shapes["rms_norm_eps"],
            "type_vocab_size": fields.get("tokenizer.ggml.token_type_count", usual),
        }

    return read


def _plain(fields: GGUFFields, shapes: Shapes, tensors: Names) -> dict[str, Any]:
    return {}


READERS: dict[str, Reader] = {
    "bert": _encoder("gelu"),
    "cohere2": _cohere2,
    "deepseek2": _deepseek2,
    "gemma4": _gemma4,
    "glm4": _plain,
    "glm4moe": _glm4_moe,
    "gpt-oss": _gpt_oss,
    "granitemoe": _granite_moe,
    "mistral3": _mistral3,
    "nomic-bert": _encoder("silu"),
    "olmo2": _olmo2,
    "olmoe": _olmoe,
    "qwen2moe": qwen2_moe,
    "smollm3": _smollm3,
}
"""Readers by architectures of GGUF files; the files of others are read in config.py."""
PARTLY_ROTATED: Collection[str] = (
    *("glm4", "glm4moe", "phi3"),
    *("qwen35", "qwen35moe", "qwen3next"),
)
"""Architectures that may rotate a part of each head."""

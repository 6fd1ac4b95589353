"""Configuration of Gemma 1, 2 and 3 (text), which extends that of the Llama family."""

from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    FULL,
    SLIDING,
    DecoderConfig,
    HfConfig,
    check_no_windows,
    decoder_shapes,
    decoder_sizes,
    periodic_windows,
)
from signalbox_worker.models.family_config import counted, family, flag, positive
from signalbox_worker.models.rope_config import read_layer_rotations

GELU_TANH = "gelu_pytorch_tanh"
_THETAS = {FULL: "rope_theta", SLIDING: "rope_local_base_freq"}
"""Names of Gemma 3's bases at the top level."""


@family("GemmaConfig")
def gemma_config(config: HfConfig) -> DecoderConfig:
    activation = config["hidden_act"]
    if activation == "gelu":  # in the first configurations it means the approximation
        activation = GELU_TANH
    check_no_windows(config)
    return _gemma_config(
        config,
        **decoder_shapes(config),
        activation=("hidden_act", activation),
    )


@family("Gemma2Config")
def gemma2_config(config: HfConfig) -> DecoderConfig:
    return _gemma_config(
        config,
        **decoder_shapes(config),
        **_gemma2_fields(config),
        attention_soft_cap=soft_cap(config, "attn_logit_softcapping"),  # which Gemma 3 only names
        sliding_windows=periodic_windows(config, 2, config["sliding_window"]),
    )


@family("Gemma3TextConfig")
def gemma3_config(config: HfConfig) -> DecoderConfig:
    both_ways, window = flag(config, "use_bidirectional_attention"), config["sliding_window"]
    if both_ways:  # half of a window is on either side
        window = counted(config, "sliding_window") // 2 + 1
    sizes, rotations = decoder_sizes(config), read_layer_rotations(config, _THETAS, scaled=(FULL,))
    sizes["is_bidirectional"] |= both_ways
    return _gemma_config(
        config,
        **sizes,
        **_gemma2_fields(config),
        qk_norm=True,
        rope=rotations[FULL].config(sizes["head_size"]),
        sliding_rope=rotations[SLIDING].config(sizes["head_size"]),
        max_position=rotations[FULL].max_position,  # which counts the scaling
        sliding_windows=periodic_windows(config, counted(config, "sliding_window_pattern"), window),
    )


def _gemma2_fields(config: HfConfig) -> dict[str, Any]:
    """Returns the fields that came with Gemma 2; Gemma 3 has them, too."""
    return {
        "activation": ("hidden_activation", config["hidden_activation"]),
        "has_inner_norms": True,
        "attention_scale": positive(config, "query_pre_attn_scalar") ** -0.5,
        "logit_soft_cap": soft_cap(config, "final_logit_softcapping"),
    }


def soft_cap(config: HfConfig, key: str) -> float | None:
    """Returns a cap of scores or logits, if there is one."""
    return None if config[key] is None else positive(config, key)


def _gemma_config(config: HfConfig, activation: tuple[str, str], **fields: Any) -> DecoderConfig:
    """Args: activation: name of the field, and what it says."""
    (key, value), architecture = activation, config["architectures"][0]
    if value != GELU_TANH:
        raise ModelError(f"{architecture} with {key} {value!r} is not supported; use {GELU_TANH}")
    if fields["is_bidirectional"] and fields.get("attention_soft_cap") is not None:
        raise ModelError(
            f"{architecture} with attn_logit_softcapping and is_causal false is not supported; "
            "use a model with one of them"
        )
    bias = flag(config, "attention_bias")
    return DecoderConfig(
        **fields,
        architecture=architecture,
        activation=GELU_TANH,
        qkv_bias=bias,
        o_bias=bias,
        norm_offset=1.0,
        embedding_scale=fields["hidden_size"] ** 0.5,
        rounds_embedding_scale=True,
    )

"""Configuration of Gemma 1, 2 and 3 (text), which extends that of the Llama family."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_worker.config import ModelError
from gpu_worker.models.decoder_config import (
    DecoderConfig,
    counted,
    decoder_shapes,
    rope_config,
    sliding_windows,
)

_HEAD_SIZE = 256  # of every Gemma, where config.json leaves it out
_WINDOW = 4096
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class GemmaConfig(DecoderConfig):
    """Satisfies `SoftCapped`."""

    attention_soft_cap: float | None = None
    logit_soft_cap: float | None = None


def gemma_config(config: Mapping[str, Any]) -> GemmaConfig:
    head_size = int(config.get("head_dim", _HEAD_SIZE))
    activation = config.get("hidden_act", "gelu")
    if activation == "gelu":  # in the first configurations it means the approximation
        activation = "gelu_pytorch_tanh"
    return _gemma_config(
        {**config, "hidden_activation": activation},
        rope=rope_config(config, head_size),
        has_inner_norms=False,
    )


def gemma2_config(config: Mapping[str, Any]) -> GemmaConfig:
    head_size = int(config.get("head_dim", _HEAD_SIZE))
    return _gemma_config(
        config,
        rope=rope_config(config, head_size),
        attention_scale=_attention_scale(config),
        sliding_windows=_windows(config, every=2),
        attention_soft_cap=config.get("attn_logit_softcapping", 50.0),
        logit_soft_cap=config.get("final_logit_softcapping", 30.0),
    )


def gemma3_config(config: Mapping[str, Any]) -> GemmaConfig:
    head_size = int(config.get("head_dim", _HEAD_SIZE))
    ropes = _gemma3_ropes(config)
    both_ways = bool(config.get("use_bidirectional_attention"))
    return _gemma_config(
        config,
        qk_norm=True,
        rope=rope_config(ropes[_FULL], head_size),
        sliding_rope=rope_config(ropes[_SLIDING], head_size),
        attention_scale=_attention_scale(config),
        sliding_windows=_gemma3_windows(config, both_ways=both_ways),
        is_bidirectional=both_ways,
        attention_soft_cap=config.get("attn_logit_softcapping"),
        logit_soft_cap=config.get("final_logit_softcapping"),
    )


def _gemma_config(config: Mapping[str, Any], **fields: Any) -> GemmaConfig:
    architecture = config["architectures"][0]
    activation = config.get("hidden_activation") or "gelu_pytorch_tanh"
    if activation != "gelu_pytorch_tanh":
        raise ModelError(
            f"{architecture} with activation {activation!r} is not supported; use gelu_pytorch_tanh"
        )
    if config.get("use_bidirectional_attention") and not fields.get("is_bidirectional"):
        raise ModelError(f"{architecture} that sees later tokens is not supported; use Gemma 3")
    bias = bool(config.get("attention_bias", False))
    explicit = {"head_dim": _HEAD_SIZE, "tie_word_embeddings": True, **config}
    explicit["rope_parameters"] = None  # in `fields`, one for each kind of layer
    shapes = decoder_shapes(explicit)
    return GemmaConfig(
        **(shapes | {"qkv_bias": bias, "o_bias": bias, "has_inner_norms": True} | fields),
        architecture=architecture,
        activation=activation,
        norm_offset=1.0,
        embedding_scale=shapes["hidden_size"] ** 0.5,
        rounds_embedding_scale=True,
    )


def _attention_scale(config: Mapping[str, Any]) -> float:
    return float(float(config.get("query_pre_attn_scalar", 256)) ** -0.5)


def _gemma3_ropes(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Returns the rotations by kind of layer; old configurations scale only layers that see all."""
    nested = config.get("rope_parameters") or {}
    if _FULL in nested:
        return {kind: {"rope_parameters": nested[kind]} for kind in (_FULL, _SLIDING)}
    scaling = config.get("rope_scaling") or {}
    return {
        _FULL: {"rope_theta": config.get("rope_theta", 1e6), "rope_scaling": scaling},
        _SLIDING: {"rope_theta": config.get("rope_local_base_freq", 1e4)},
    }


def _gemma3_windows(config: Mapping[str, Any], *, both_ways: bool) -> tuple[int | None, ...]:
    """Returns the layers' windows; half of one is on either side if tokens see both."""
    if both_ways:
        window = counted(config, "sliding_window", _WINDOW) // 2 + 1
        config = {**config, "sliding_window": window}
    return _windows(config, every=int(config.get("sliding_window_pattern") or 6))


def _windows(config: Mapping[str, Any], *, every: int) -> tuple[int | None, ...]:
    """Returns the layers' windows; by default the last of `every` layers sees all, the others
    slide."""
    num_layers = int(config.get("num_hidden_layers", 0))
    kinds = [_SLIDING if (i + 1) % every else _FULL for i in range(num_layers)]
    explicit = {**config, "layer_types": config.get("layer_types") or kinds}
    return sliding_windows(explicit, config.get("sliding_window", _WINDOW))

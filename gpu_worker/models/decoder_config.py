"""Configuration of the decoders of the Llama family, read from a model's config.json."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gpu_worker.config import ModelError
from gpu_worker.models.rope import (
    FrequencyDivisors,
    Llama3Scaling,
    LongRopeScaling,
    RopeConfig,
    RopeScaling,
    YarnScaling,
)

HfConfig = Mapping[str, Any]
_MOST = (1 << 31) - 1
_MAX_NUM_LAYERS = 1 << 12
"""More than any model has; the names of all tensors are in memory before one is looked for."""
_PHI3_LENGTH = 4096
"""Original window of Phi-3, where config.json does not say it."""
_MAX_POSITION = 1 << 24
"""Likewise; the angles of each position are in memory, 512 bytes at a head size of 64."""
_YARN_VARIANTS = {"mscale", "mscale_all_dim", "truncate"}
"""YaRN options that are supported only for models that run through transformers."""


FUSED_PROJECTIONS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Matrices of a layer that Phi-3's checkpoints have instead of several, in the order of rows."""


class UnsoundConfig(ModelError):
    """A config.json that describes no model, whichever implementation reads it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shapes and flags of a decoder; whole numbers of the model, not of a rank."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_size: int
    rms_norm_eps: float
    rope: RopeConfig
    max_position: int
    tie_embeddings: bool
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    """True if Q and K pass an RMSNorm before rotation (Qwen3)."""
    sliding_windows: tuple[int | None, ...] = ()
    """Number of positions that a token sees in each layer; None sees all."""
    attention_scale: float | None = None
    """Factor of attention scores; None is that of the head size."""
    embedding_scale: float = 1.0
    """Factor of the table's rows where they are looked up."""
    rounds_embedding_scale: bool = False
    """True if that is rounded to the dtype of the weights, as Gemma was trained."""
    logit_divisor: float = 1.0
    has_fused_projections: bool = False
    """True if checkpoints have FUSED_PROJECTIONS."""
    activation: str = "silu"
    """Function of the gate, as config.json names it."""
    norm_offset: float = 0.0
    """Number that all norms add to their weights."""
    has_inner_norms: bool = False
    """True if the results of attention and feed-forward are normed too, as from Gemma 2 on."""
    sliding_rope: RopeConfig | None = None
    """Rotation of the layers with a window; None is `rope`."""
    has_head: bool = True
    """False of a model whose hidden states are pooled, and make no logits."""
    is_bidirectional: bool = False
    """True if tokens see those behind them too, by a window as wide on both sides."""

    @property
    def usual_length(self) -> int:
        """Window in tokens, unless a longer one is configured; satisfies `Stretched`."""
        scaling = self.rope.scaling
        if isinstance(scaling, LongRopeScaling):
            return min(self.max_position, scaling.original_max_position)
        return self.max_position

    @property
    def scale(self) -> float:
        return self.attention_scale or float(self.head_size**-0.5)


def llama_config(config: HfConfig) -> DecoderConfig:
    bias = bool(config.get("attention_bias", False))
    return _decoder_config(
        config, qkv_bias=bias, o_bias=bias, mlp_bias=bool(config.get("mlp_bias", False))
    )


def mistral_config(config: HfConfig) -> DecoderConfig:
    return _decoder_config(
        config, sliding_windows=sliding_windows(config, config.get("sliding_window"))
    )


def qwen2_config(config: HfConfig) -> DecoderConfig:
    return _decoder_config(config, qkv_bias=True, sliding_windows=_qwen_windows(config))


def qwen3_config(config: HfConfig) -> DecoderConfig:
    bias = bool(config.get("attention_bias", False))
    return _decoder_config(
        config, qkv_bias=bias, o_bias=bias, qk_norm=True, sliding_windows=_qwen_windows(config)
    )


def granite_config(config: HfConfig) -> DecoderConfig:
    """Reads Granite, whose layers add `residual_multiplier` times what they compute.

    Here hidden states are divided by that: layers add what they compute, as Llama's do. The norms
    that read hidden states undo any factor but in their epsilon, which is divided by its square.
    """
    residual = positive(config, "residual_multiplier")
    bias = bool(config.get("attention_bias", False))
    return _decoder_config(
        {**config, "rms_norm_eps": required(config, "rms_norm_eps") / residual**2},
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        attention_scale=positive(config, "attention_multiplier"),
        embedding_scale=positive(config, "embedding_multiplier") / residual,
        logit_divisor=positive(config, "logits_scaling"),
    )


def phi3_config(config: HfConfig) -> DecoderConfig:
    """Reads Phi-3 and Phi-4; what is in blocks or codes of a checkpoint's own is refused."""
    if config.get("quantization_config") is not None:
        raise ModelError(
            f"{config['architectures'][0]} with quantization_config is not supported; use a GGUF "
            "file, or a checkpoint in floats"
        )
    return _decoder_config(
        {**config, "rope_parameters": _phi3_rope(config)},
        sliding_windows=sliding_windows(config, config.get("sliding_window")),
        has_fused_projections=True,
    )


def _phi3_rope(config: HfConfig) -> HfConfig:
    """Returns the rotation with the defaults of Phi-3, whose first checkpoints call LongRoPE su or
    yarn."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UnsoundConfig(f"config.json says rope_parameters = {str(parameters)[:40]}")
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    if kind not in ("su", "yarn", "longrope"):
        return parameters
    key = "original_max_position_embeddings"
    original = counted(config, key, _PHI3_LENGTH)
    factor = parameters.get("factor") or counted(config, "max_position_embeddings") / original
    stretch = math.log(factor) / math.log(original) if factor > 1 else 0.0
    attention_factor = parameters.get("attention_factor") or math.sqrt(1 + stretch)
    known = {"rope_type": "longrope", key: original, "attention_factor": attention_factor}
    return {**parameters, **known}


def positive(config: HfConfig, key: str) -> float:
    """Returns a factor, 1 if it is missing. Raises ModelError unless it is positive."""
    value = config.get(key, 1.0)
    if not isinstance(value, int | float) or not 0 < value < math.inf:
        raise UnsoundConfig(f"config.json says {key} = {str(value)[:40]}, which is no factor")
    return float(value)


def _decoder_config(config: HfConfig, **flags: Any) -> DecoderConfig:
    architecture = config["architectures"][0]
    activation = config.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelError(
            f"{architecture} with activation {activation!r} is not supported; use silu"
        )
    return DecoderConfig(**decoder_shapes(config), architecture=architecture, **flags)


def required(config: HfConfig, key: str) -> Any:
    """Returns a field of config.json. Raises ModelError if it is missing."""
    if config.get(key) is None:
        raise ModelError(f"config.json has no {key!r}; it is incomplete")
    return config[key]


def counted(config: HfConfig, key: str, default: int | None = None, *, most: int = _MOST) -> int:
    """Returns a field that counts something. Raises ModelError unless it is in [1, most]."""
    value = config.get(key) or default
    value = required(config, key) if value is None else value
    if type(value) is not int or not 1 <= value <= most:
        raise UnsoundConfig(
            f"config.json says {key} = {str(value)[:40]}, which is no whole number in [1, {most}]"
        )
    return value


def decoder_shapes(config: HfConfig) -> dict[str, Any]:
    """Returns the fields of a DecoderConfig that have one name in all families."""
    num_heads = counted(config, "num_attention_heads")
    num_kv_heads = counted(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise UnsoundConfig(
            f"config.json says num_attention_heads = {num_heads}, which num_key_value_heads = "
            f"{num_kv_heads} does not divide"
        )
    hidden_size = counted(config, "hidden_size")
    head_size = counted(config, "head_dim", hidden_size // num_heads)
    eps = required(config, "rms_norm_eps")
    if not isinstance(eps, int | float) or not 0 <= eps < math.inf:
        raise UnsoundConfig(
            f"config.json says rms_norm_eps = {str(eps)[:40]}, which is no small one"
        )
    return {
        "vocab_size": counted(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": counted(config, "intermediate_size"),
        "num_layers": counted(config, "num_hidden_layers", most=_MAX_NUM_LAYERS),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": head_size,
        "rms_norm_eps": float(eps),
        "rope": rope_config(config, head_size),
        "max_position": counted(config, "max_position_embeddings", most=_MAX_POSITION),
        "tie_embeddings": bool(config.get("tie_word_embeddings", False)),
    }


def rope_config(config: HfConfig, head_size: int) -> RopeConfig:
    """Reads rope_parameters, or rope_theta with rope_scaling, its older form."""
    parameters = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(parameters, Mapping):
        raise UnsoundConfig(f"config.json says rope_parameters = {str(parameters)[:40]}")
    theta = parameters.get("rope_theta") or config.get("rope_theta") or 10000.0
    partial = parameters.get("partial_rotary_factor") or config.get("partial_rotary_factor") or 1.0
    if partial != 1.0:
        raise ModelError(f"partial_rotary_factor {partial} is not supported; use a model with 1.0")
    return RopeConfig(theta=float(theta), scaling=_rope_scaling(parameters, head_size))


def _rope_scaling(parameters: HfConfig, head_size: int) -> RopeScaling | None:
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    match kind:
        case "default":
            return None
        case "linear":
            return FrequencyDivisors((float(required(parameters, "factor")),) * (head_size // 2))
        case "divisors":  # written by our GGUF loader
            return FrequencyDivisors(tuple(required(parameters, "divisors")))
        case "llama3":
            return Llama3Scaling(
                factor=float(required(parameters, "factor")),
                low_freq_factor=float(required(parameters, "low_freq_factor")),
                high_freq_factor=float(required(parameters, "high_freq_factor")),
                original_max_position=int(required(parameters, "original_max_position_embeddings")),
            )
        case "longrope":
            return _longrope_scaling(parameters, head_size)
        case "yarn" if not _YARN_VARIANTS & parameters.keys():
            return _yarn_scaling(parameters)
    raise ModelError(
        f"rope scaling {kind!r} is not supported; use a model with default, linear, llama3, "
        "longrope or yarn"
    )


def _longrope_scaling(parameters: HfConfig, head_size: int) -> LongRopeScaling:
    factors = [
        tuple(map(float, required(parameters, f"{kind}_factor"))) for kind in ("short", "long")
    ]
    if {len(each) for each in factors} != {head_size // 2}:
        raise UnsoundConfig(
            f"config.json has LongRoPE without a factor for each of {head_size // 2} frequencies"
        )
    return LongRopeScaling(
        short=factors[0],
        long=factors[1],
        original_max_position=int(required(parameters, "original_max_position_embeddings")),
        attention_factor=float(required(parameters, "attention_factor")),
    )


def _yarn_scaling(parameters: HfConfig) -> YarnScaling:
    factor = float(required(parameters, "factor"))
    by_factor = 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
    attention_factor = parameters.get("attention_factor")
    return YarnScaling(
        factor=factor,
        original_max_position=int(required(parameters, "original_max_position_embeddings")),
        beta_fast=float(parameters.get("beta_fast") or 32),
        beta_slow=float(parameters.get("beta_slow") or 1),
        attention_factor=float(by_factor if attention_factor is None else attention_factor),
    )


def _qwen_windows(config: HfConfig) -> tuple[int | None, ...]:
    """Returns the windows of Qwen: only if enabled, in the layers past max_window_layers."""
    window = config.get("sliding_window") if config.get("use_sliding_window") else None
    return sliding_windows(config, window, first_layer=int(config.get("max_window_layers", 0)))


def sliding_windows(
    config: HfConfig, window: int | None, *, first_layer: int = 0
) -> tuple[int | None, ...]:
    num_layers = counted(config, "num_hidden_layers", most=_MAX_NUM_LAYERS)
    kinds = config.get("layer_types") or [
        "sliding_attention" if i >= first_layer else "full_attention" for i in range(num_layers)
    ]
    if not isinstance(kinds, list) or len(kinds) < num_layers:
        raise UnsoundConfig(f"config.json does not give the layer_types of {num_layers} layers")
    window = counted({"sliding_window": window}, "sliding_window") if window else None
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)

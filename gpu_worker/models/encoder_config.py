"""Configuration of encoders, whose tokens see those behind them too: BERT, RoBERTa, ModernBERT."""

import math
from dataclasses import dataclass
from typing import Any

from gpu_worker.config import ModelError
from gpu_worker.models.decoder_config import (
    HfConfig,
    UnsoundConfig,
    counted,
    required,
    rope_config,
    sliding_windows,
)
from gpu_worker.models.rope import RopeConfig

_OTHER_HEADS = ("pooler.", "cls.", "lm_head.", "classifier.", "head.", "decoder.")
_BUFFERS = (".position_ids", ".token_type_ids")
_SLIDING, _FULL = "sliding_attention", "full_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Configuration that all encoders have; satisfies `ServedConfig` and `Pooled`."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_position: int
    """Longest sequence in tokens."""
    activation: str
    """Name of the activation in config.json."""
    norm_eps: float
    sliding_windows: tuple[int | None, ...] = ()
    """A token of a layer sees those less than so many positions away; None sees all."""

    @property
    def is_bidirectional(self) -> bool:
        return True

    @property
    def num_kv_heads(self) -> int:
        return self.num_heads

    @property
    def head_size(self) -> int:
        return self.hidden_size // self.num_heads

    @property
    def scale(self) -> float:
        return float(self.head_size**-0.5)


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig(EncoderConfig):
    """BERT (Devlin et al., 2018) and RoBERTa (Liu et al., 2019), with learned positions."""

    num_token_types: int
    position_offset: int
    """Rows before that of position 0 in the table of positions."""
    prefix: str
    """Beginning of the names of weights, in checkpoints of more than the encoder."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """ModernBERT (Warner et al., 2024): rotation, gated activations, norms before each part."""

    rope: RopeConfig
    sliding_rope: RopeConfig
    """Rotation of the layers with a window."""
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False


def is_ignored(name: str, prefix: str) -> bool:
    """Says whether a tensor may be in a checkpoint although the encoder does not need it.

    Args:
        prefix: what names of the encoder's own tensors may begin with.
    """
    own = name.removeprefix(f"{prefix}.")
    return own.startswith(_OTHER_HEADS) or name.endswith(_BUFFERS)


def bert_config(config: HfConfig) -> BertConfig:
    return _learned_positions(config, prefix="bert", position_offset=0)


def roberta_config(config: HfConfig) -> BertConfig:
    """Reads RoBERTa and XLM-RoBERTa, whose positions begin behind that of padding."""
    padding = config.get("pad_token_id", 1)
    if type(padding) is not int or padding < 0:
        raise UnsoundConfig(f"config.json says pad_token_id = {str(padding)[:40]}")
    return _learned_positions(config, prefix="roberta", position_offset=padding + 1)


def _learned_positions(config: HfConfig, *, prefix: str, position_offset: int) -> BertConfig:
    kind = config.get("position_embedding_type") or "absolute"
    if kind != "absolute":
        raise _unserved(config, f"position_embedding_type {str(kind)[:40]!r}", "absolute")
    for flag in ("is_decoder", "add_cross_attention"):
        if config.get(flag):
            raise _unserved(config, f"{flag} true", "an encoder")
    shapes = _shapes(config, eps_name="layer_norm_eps", eps=1e-12)
    max_position = shapes["max_position"] - position_offset
    if max_position < 1:
        raise UnsoundConfig("config.json leaves no position beside padding")
    return BertConfig(
        **shapes | {"max_position": max_position},
        activation=config.get("hidden_act", "gelu"),
        num_token_types=counted(config, "type_vocab_size", 2),
        position_offset=position_offset,
        prefix=prefix,
    )


def modernbert_config(config: HfConfig) -> ModernBertConfig:
    shapes = _shapes(config, eps_name="norm_eps", eps=1e-5)
    head_size = shapes["hidden_size"] // shapes["num_heads"]
    every = counted(config, "global_attn_every_n_layers", 3)
    kinds = [_SLIDING if i % every else _FULL for i in range(shapes["num_layers"])]
    explicit = {**config, "layer_types": config.get("layer_types") or kinds}
    rope, sliding_rope = (_modernbert_rope(config, kind, head_size) for kind in (_FULL, _SLIDING))
    return ModernBertConfig(
        **shapes,
        activation=config.get("hidden_activation", "gelu"),
        # Half of the window is on either side, and the token itself between them.
        sliding_windows=sliding_windows(explicit, counted(config, "local_attention", 128) // 2 + 1),
        rope=rope,
        sliding_rope=sliding_rope,
        attention_bias=bool(config.get("attention_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        norm_bias=bool(config.get("norm_bias", False)),
    )


def _modernbert_rope(config: HfConfig, kind: str, head_size: int) -> RopeConfig:
    nested = config.get("rope_parameters") or {}
    if isinstance(nested, dict) and isinstance(nested.get(kind), dict):
        return rope_config({"rope_parameters": nested[kind]}, head_size)
    name, theta = ("global_rope_theta", 160_000.0)
    if kind == _SLIDING:
        name, theta = ("local_rope_theta", 10_000.0)
    theta = config.get(name) or theta
    return rope_config({"rope_theta": theta, "rope_scaling": config.get("rope_scaling")}, head_size)


def _shapes(config: HfConfig, *, eps_name: str, eps: float) -> dict[str, Any]:
    hidden_size, num_heads = counted(config, "hidden_size"), counted(config, "num_attention_heads")
    if hidden_size % num_heads:
        raise UnsoundConfig(
            f"config.json says hidden_size = {hidden_size}, which num_attention_heads = "
            f"{num_heads} does not divide"
        )
    norm_eps = config.get(eps_name, eps)
    if not isinstance(norm_eps, int | float) or not 0 <= norm_eps < math.inf:
        raise UnsoundConfig(
            f"config.json says {eps_name} = {str(norm_eps)[:40]}, which is no small number"
        )
    return {
        "architecture": required(config, "architectures")[0],
        "vocab_size": counted(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": counted(config, "intermediate_size"),
        "num_layers": counted(config, "num_hidden_layers", most=1 << 12),
        "num_heads": num_heads,
        "max_position": counted(config, "max_position_embeddings", most=1 << 24),
        "norm_eps": float(norm_eps),
    }


def _unserved(config: HfConfig, what: str, remedy: str) -> ModelError:
    return ModelError(f"{config['architectures'][0]} with {what} is not supported; use {remedy}")

"""Configuration of encoders (BERT and its kin), whose tokens see those behind them too."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    FULL,
    MAX_HEAD_SIZE,
    MAX_NUM_LAYERS,
    SLIDING,
    HfConfig,
    is_causal,
    sliding_windows,
)
from signalbox_worker.models.family_config import (
    FamilyConfig,
    UnsoundConfig,
    counted,
    family,
    flag,
    required,
    small,
)
from signalbox_worker.models.rope import RopeConfig
from signalbox_worker.models.rope_config import MAX_POSITION, read_layer_rotations, read_rotation

_OTHER_HEADS = (
    *("pooler.", "cls.", "lm_head.", "classifier.", "head.", "decoder.", "linear."),
    *("pre_classifier.", "vocab_transform.", "vocab_layer_norm.", "vocab_projector."),
)
DISTANCE_BIASES = "encoder.relative_attention_bias.weight"
"""Name of MPNet's table in checkpoints."""
_USUAL_EPS = 1e-12
_SIZES = ("hidden_size", "num_attention_heads", "intermediate_size", "num_hidden_layers")
_OF_DISTILBERT = dict(zip(_SIZES, ("dim", "n_heads", "hidden_dim", "n_layers"), strict=True))
"""Names of `_SIZES` in DistilBERT."""
_MPNET_BUCKETS, _MPNET_OFFSET = 32, 2
"""Constants of transformers' code: buckets, whatever config.json says, and the first position."""
_BUFFERS = (".position_ids", ".token_type_ids")
_THETAS = {FULL: "global_rope_theta", SLIDING: "local_rope_theta"}
"""Names of ModernBERT's bases at the top level."""
_OF_DECODERS = ("is_causal", "layer_types", "sliding_window")
"""Names of transformers' masks and caches that say nothing to an encoder that has no field of
them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlainConfig:
    """Configuration of models with a K and V head for each head, which divide the hidden size."""

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    max_position: int
    """Longest sequence in tokens."""
    norm_eps: float
    sliding_windows: tuple[int | None, ...] = ()
    """A token of a layer sees those less than so many positions away; None sees all."""

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
class EncoderConfig(PlainConfig):
    """Configuration that all encoders have."""

    activation: str
    """Name of the activation in config.json."""
    num_token_types: int = 0
    """Types of tokens that have an embedding; 0 if the model has none."""

    @property
    def is_bidirectional(self) -> bool:
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class BertConfig(EncoderConfig):
    """BERT (Devlin et al., 2018) and RoBERTa (Liu et al., 2019), with learned positions."""

    position_offset: int
    """Rows before that of position 0 in the table of positions."""
    prefix: str
    """Beginning of the names of weights, in checkpoints of more than the encoder."""
    num_distance_buckets: int = 0
    """Buckets of distances by which attention's scores have a bias; 0 if they have none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModernBertConfig(EncoderConfig):
    """ModernBERT (Warner et al., 2024): rotation, gated activations, norms before each part."""

    rope: RopeConfig
    sliding_rope: RopeConfig
    """Rotation of the layers with a window."""
    attention_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NomicBertConfig(EncoderConfig):
    """Nomic BERT (Nussbaum et al., 2024): rotation, gated activations, norms behind sums."""

    rope: RopeConfig


def is_ignored(name: str, prefix: str) -> bool:
    """Says whether a tensor may be in a checkpoint although the encoder does not need it.

    Args:
        prefix: what names of the encoder's own tensors may begin with.
    """
    own = name.removeprefix(f"{prefix}.")
    return own.startswith(_OTHER_HEADS) or name.endswith(_BUFFERS)


@family("BertConfig")
def bert_config(config: FamilyConfig) -> BertConfig:
    return _learned_positions(config, prefix="bert", position_offset=0)


@family("RobertaConfig")
def roberta_config(config: FamilyConfig) -> BertConfig:
    """Reads RoBERTa, whose positions begin behind that of padding."""
    padding = config["pad_token_id"]
    if type(padding) is not int or padding < 0:
        raise UnsoundConfig(f"config.json says pad_token_id = {str(padding)[:40]}")
    return _learned_positions(config, prefix="roberta", position_offset=padding + 1)


@family("XLMRobertaConfig")
def xlm_roberta_config(config: FamilyConfig) -> BertConfig:
    return roberta_config(config)


@family("DistilBertConfig")
def distilbert_config(config: FamilyConfig) -> BertConfig:
    """Reads DistilBERT (Sanh et al., 2019), which is BERT without token types."""
    config.disregard(*_OF_DECODERS)
    config.get("sinusoidal_pos_embds")  # the checkpoint has the table in either case
    return BertConfig(
        **_shapes(config, eps=None, names=_OF_DISTILBERT),
        activation=config["activation"],
        position_offset=0,
        prefix="distilbert",
    )


@family("MPNetConfig")
def mpnet_config(config: FamilyConfig) -> BertConfig:
    """Reads MPNet (Song et al., 2020): BERT without token types, whose attention has biases by
    distance."""
    num_buckets = counted(config, "relative_attention_num_buckets")
    if num_buckets != _MPNET_BUCKETS:
        raise _unserved(
            config, f"relative_attention_num_buckets {num_buckets}", str(_MPNET_BUCKETS)
        )
    read = _learned_positions(
        config, prefix="mpnet", position_offset=_MPNET_OFFSET, has_types=False
    )
    return replace(read, num_distance_buckets=num_buckets)


def _learned_positions(
    config: FamilyConfig, *, prefix: str, position_offset: int, has_types: bool = True
) -> BertConfig:
    kind = config.get("position_embedding_type")
    if kind not in (None, "absolute"):
        raise _unserved(config, f"position_embedding_type {str(kind)[:40]!r}", "absolute")
    config.disregard(*_OF_DECODERS)
    shapes = _shapes(config, eps="layer_norm_eps")
    max_position = shapes["max_position"] - position_offset
    if max_position < 1:
        raise UnsoundConfig("config.json leaves no position beside padding")
    return BertConfig(
        **shapes | {"max_position": max_position},
        activation=config["hidden_act"],
        num_token_types=counted(config, "type_vocab_size") if has_types else 0,
        position_offset=position_offset,
        prefix=prefix,
    )


@family("ModernBertConfig")
def modernbert_config(config: FamilyConfig) -> ModernBertConfig:
    shapes = _shapes(config, eps="norm_eps")
    head_size = shapes["hidden_size"] // shapes["num_heads"]
    if counted(config, "head_dim", head_size, most=MAX_HEAD_SIZE) != head_size:
        raise _unserved(config, f"head_dim {config['head_dim']}", str(head_size))
    every = counted(config, "global_attn_every_n_layers")
    rotations = read_layer_rotations(config, _THETAS, scaled=(FULL, SLIDING))
    if others := set(config["rope_parameters"] or ()) - _THETAS.keys():
        raise UnsoundConfig(f"config.json says rope_parameters.{min(others)[:40]} for all layers")
    half = counted(config, "local_attention") // 2
    if config.says("sliding_window"):
        half = counted(config, "sliding_window")
    window = half + 1  # half is on either side, and the token itself between them, causal or not
    slides = [bool(i % every) for i in range(shapes["num_layers"])]
    return ModernBertConfig(
        **shapes | {"max_position": rotations[FULL].served_length},
        activation=config["hidden_activation"],
        sliding_windows=sliding_windows(config, slides, window - (not is_causal(config))),
        rope=rotations[FULL].config(head_size),
        sliding_rope=rotations[SLIDING].config(head_size),
        attention_bias=flag(config, "attention_bias"),
        mlp_bias=flag(config, "mlp_bias"),
        norm_bias=flag(config, "norm_bias"),
    )


@family("NomicBertConfig")
def nomic_bert_config(config: FamilyConfig) -> NomicBertConfig:
    config.disregard(*_OF_DECODERS)
    shapes, rotation = _shapes(config, eps="layer_norm_eps"), read_rotation(config)
    head_size = shapes["hidden_size"] // shapes["num_heads"]
    if counted(config, "head_dim", head_size, most=MAX_HEAD_SIZE) != head_size:
        raise _unserved(config, f"head_dim {config['head_dim']}", str(head_size))
    return NomicBertConfig(
        **shapes | {"max_position": rotation.served_length},
        activation=config["hidden_act"],
        num_token_types=counted(config, "type_vocab_size"),
        rope=rotation.config(head_size),
    )


def _shapes(
    config: HfConfig, *, eps: str | None, names: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Reads what all families have.

    Args:
        eps: name of the norms' epsilon; None is BERT's.
        names: the family's own of sizes.
    """
    own = {name: name for name in _SIZES} | dict(names or {})
    width, heads, inner, layers = (own[name] for name in _SIZES)
    config.get("tie_word_embeddings")  # of a head that is not used
    return {
        **plain_sizes(config, width=width, heads=heads, layers=layers),
        "intermediate_size": counted(config, inner),
        "norm_eps": _USUAL_EPS if eps is None else small(config, eps),
    }


def plain_sizes(
    config: HfConfig,
    *,
    width: str = "hidden_size",
    heads: str = "num_attention_heads",
    layers: str = "num_hidden_layers",
    positions: str = "max_position_embeddings",
) -> dict[str, Any]:
    """Reads fields of a `PlainConfig` by the family's own names."""
    hidden_size, num_heads = counted(config, width), counted(config, heads)
    if hidden_size % num_heads:
        raise UnsoundConfig(
            f"config.json says {width} = {hidden_size}, which {heads} = {num_heads} does not divide"
        )
    return {
        "architecture": required(config, "architectures")[0],
        "vocab_size": counted(config, "vocab_size"),
        "hidden_size": hidden_size,
        "num_layers": counted(config, layers, most=MAX_NUM_LAYERS),
        "num_heads": num_heads,
        "max_position": counted(config, positions, most=MAX_POSITION),
    }


def _unserved(config: HfConfig, what: str, remedy: str) -> ModelError:
    return ModelError(f"{config['architectures'][0]} with {what} is not supported; use {remedy}")

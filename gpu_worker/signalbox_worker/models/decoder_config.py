"""Configuration of the decoders of the Llama family, read from a model's config.json."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from signalbox_worker.config import ModelError
from signalbox_worker.models.family_config import (
    FamilyConfig,
    UnsoundConfig,
    counted,
    family,
    flag,
    positive,
    small,
)
from signalbox_worker.models.recurrence import Recurrence
from signalbox_worker.models.rope import QueryScaling, RopeConfig
from signalbox_worker.models.rope_config import RopeParameters, read_rotation

HfConfig = Mapping[str, Any]
MAX_NUM_LAYERS = 1 << 12
"""More than any model has; the names of all tensors are in memory before one is looked for."""
MAX_HEAD_SIZE = 1 << 16
"""More than any model has; a head's frequencies are computed before one is rotated."""
SLIDING, FULL = "sliding_attention", "full_attention"
_KINDS = {SLIDING: True, FULL: False, "attention": False}
"""Types of layers; true for those with a window."""


FUSED_PROJECTIONS = {
    "self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.gate_up_proj": ("mlp.gate_proj", "mlp.up_proj"),
}
"""Matrices of a layer that Phi-3's checkpoints have instead of several, in the order of rows."""


GATES = ("silu", "gelu_pytorch_tanh", "relu2")
"""Functions of the gate of a layer, or of its first product, by their names in config.json."""


class LayerHeads(NamedTuple):
    """Heads of a layer's attention."""

    num_heads: int
    num_kv_heads: int
    size: int
    projections: str = "qkv"
    """Letters of Q, K and V that have a matrix. Without that of V, V is K before its norm; without
    that of K, K and V are those of another layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentSizes:
    """Sizes of latent attention, where K and V of all heads are products of one latent."""

    query_rank: int | None
    """Width of the latent of queries; None if they are products of hidden states."""
    size: int
    """Width of the latent."""
    rotated: int
    """First elements of K that rotate, and are the same for all heads."""
    unrotated: int
    """Other elements of each head's K."""
    value: int
    """Elements of each head's V."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderConfig:
    """Shapes and flags of a decoder; whole numbers of the model, not of a shard."""

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
    qk_norm_is_whole: bool = False
    """True if that norm is of all heads together (OLMoE)."""
    has_sinks: bool = False
    """True if each head has a sink: a score beside those of the tokens, without a value."""
    sliding_windows: tuple[int | None, ...] = ()
    """Number of positions that a token sees in each layer; None sees all."""
    attention_scale: float | None = None
    """Factor of attention scores; None is that of the head size."""
    embedding_scale: float = 1.0
    """Factor of the table's rows where they are looked up."""
    rounds_embedding_scale: bool = False
    """True if that is rounded to the dtype of the weights, as Gemma was trained."""
    logit_divisor: float = 1.0
    logit_soft_cap: float | None = None
    """Logits become cap * tanh(logit / cap)."""
    attention_soft_cap: float | None = None
    """Scores of attention become cap * tanh(score / cap)."""
    fused_projections: tuple[str, ...] = ()
    """Keys of FUSED_PROJECTIONS that checkpoints have."""
    activation: str = "silu"
    """Function of the gate; one of `GATES`."""
    norm_offset: float = 0.0
    """Number that all norms add to their weights: 1, of RMSNorms alone, or 0."""
    norm_is_centred: bool = False
    """True if all norms but those of Q and K are LayerNorms, which subtract the mean."""
    norm_parts: tuple[str, ...] = ("weight",)
    """Tensors of each such norm in a checkpoint: a weight, perhaps a bias, or none."""
    norms_values: bool = False
    """True if V passes an RMSNorm without a weight."""
    has_inner_norms: bool = False
    """True if the results of attention and feed-forward are normed too, as from Gemma 2 on."""
    inner_norms: tuple[str, str] = ("post_attention_layernorm", "post_feedforward_layernorm")
    """Names of those norms."""
    has_input_norms: bool = True
    """False if attention and feed-forward read hidden states as they are (OLMo 2)."""
    is_parallel: bool = False
    """True if a layer has one norm, whose rows attention and feed-forward read (Cohere)."""
    sliding_rope: RopeConfig | None = None
    """Rotation of the layers with a window; None is `rope`."""
    rotates_neighbours: bool = False
    """True if elements 2 i and 2 i + 1 of a head are turned together (GLM), False if element i of
    one half is turned with that of the other."""
    latents: LatentSizes | None = None
    """Sizes of latent attention, which caches one K head: the rotated part of K, and the latent.
    None caches K and V of `num_kv_heads`."""
    gates_attention: bool = False
    """True if the matrix of Q has as many rows of a gate behind those of each head, whose sigmoid
    is multiplied with what the head attends to (Qwen3-Next)."""
    has_gate: bool = True
    """False of a feed-forward that is one product, its activation, and another product."""
    recurrence: Recurrence | None = None
    """Sizes of layers that have a recurrence in place of attention; None without such layers."""
    recurrent_layers: frozenset[int] = frozenset()
    has_one_part: bool = False
    """True if a layer is attention, a recurrence or a feed-forward alone, with one norm
    (Nemotron-H)."""
    feed_forward_layers: frozenset[int] = frozenset()
    """Layers of such a decoder that are a feed-forward."""
    unrotated_layers: frozenset[int] = frozenset()
    """Layers whose Q and K have no positions (NoPE)."""
    query_scaling: QueryScaling | None = None
    """Factors of rotated queries; None is 1."""
    may_have_more_layers: bool = False
    """True if checkpoints may have layers behind the last one, which predict further tokens."""
    mtp_layer: int | None = None
    """Layer that joins hidden states of those before it with the tokens that follow, to predict
    further ones; None of a model without."""
    has_head: bool = True
    """False of a model whose hidden states are pooled, and make no logits."""
    is_bidirectional: bool = False
    """True if tokens see those behind them too, by a window as wide on both sides."""

    def __post_init__(self) -> None:
        """Raises ModelError for a value that no layer computes."""
        allowed = (0.0,) if self.norm_is_centred else (0.0, 1.0)
        for name, values in (("activation", GATES), ("norm_offset", allowed)):
            if (value := getattr(self, name)) not in values:
                wanted = " or ".join(map(str, values))
                raise ModelError(
                    f"{self.architecture} with {name} {value!r} is not supported; use {wanted}"
                )

    @property
    def is_native_only(self) -> bool:
        """True if native programs alone compute it, and `llama.Decoder` does not."""
        is_partial = self.rope.num_rotated is not None or bool(self.unrotated_layers)
        has_own_norms = self.qk_norm_is_whole or self.norms_values or not self.has_input_norms
        has_own_turns = is_partial or self.rotates_neighbours or self.query_scaling is not None
        has_own_attention = self.has_sinks or self.latents is not None or self.is_parallel
        is_hybrid = self.recurrence is not None
        return has_own_norms or has_own_turns or has_own_attention or is_hybrid

    @property
    def usual_length(self) -> int:
        """Window in tokens, unless a longer one is configured."""
        return min(self.max_position, self.rope.original_length or self.max_position)

    def heads_of(self, layer: int) -> LayerHeads:
        return LayerHeads(self.num_heads, self.num_kv_heads, self.head_size)

    def kv_layer(self, layer: int) -> int:
        """Returns the layer whose K and V a layer reads."""
        return layer

    def attends(self, layer: int) -> bool:
        return layer not in self.recurrent_layers and layer not in self.feed_forward_layers

    def has_feed_forward(self, layer: int) -> bool:
        return not self.has_one_part or layer in self.feed_forward_layers

    @property
    def state_bytes(self) -> tuple[int, ...]:
        """Bytes that each layer keeps of a sequence besides K and V; empty of a decoder whose
        layers all attend."""
        if self.recurrence is None:
            return ()
        size, recurrent = self.recurrence.state_bytes, self.recurrent_layers
        return tuple(size if layer in recurrent else 0 for layer in range(self.num_layers))

    def inner_size(self, layer: int) -> int:
        """Returns the inner columns of a layer's feed-forward."""
        return self.intermediate_size

    @property
    def rope_head_size(self) -> int:
        """Size of the heads that `rope` turns."""
        return self.head_size

    @property
    def scale(self) -> float:
        return self.attention_scale or float(self.head_size**-0.5)


@family("LlamaConfig")
def llama_config(config: HfConfig) -> DecoderConfig:
    return _with_biases(config)


@family("MistralConfig")
def mistral_config(config: HfConfig) -> DecoderConfig:
    return dense_config(config, sliding_windows=uniform_windows(config))


@family("Qwen2Config")
def qwen2_config(config: HfConfig) -> DecoderConfig:
    return qwen2_like(config, _qwen_windows(config))


def qwen2_like(
    config: HfConfig, windows: tuple[int | None, ...], *, qkv_bias: bool = True
) -> DecoderConfig:
    """Reads what Qwen2 and its mixtures share."""
    return dense_config(config, qkv_bias=qkv_bias, sliding_windows=windows)


@family("Qwen3Config")
def qwen3_config(config: HfConfig) -> DecoderConfig:
    return qwen3_like(config, _qwen_windows(config))


def qwen3_like(config: HfConfig, windows: tuple[int | None, ...]) -> DecoderConfig:
    """Reads what Qwen3 and its mixtures share."""
    bias = flag(config, "attention_bias")
    return dense_config(config, qkv_bias=bias, o_bias=bias, qk_norm=True, sliding_windows=windows)


def olmo_like(
    config: HfConfig, rotation: RopeParameters | None = None, **fields: Any
) -> DecoderConfig:
    """Reads what OLMo 2, OLMo 3 and OLMo's mixtures share."""
    bias = flag(config, "attention_bias")
    norms = {"qk_norm": True, "qk_norm_is_whole": True}
    return dense_config(config, rotation, qkv_bias=bias, o_bias=bias, **norms, **fields)


@family("GraniteConfig")
def granite_config(config: FamilyConfig) -> DecoderConfig:
    """Reads Granite, whose layers add `residual_multiplier` times what they compute.

    Here hidden states are divided by that: layers add what they compute, as Llama's do. The norms
    that read hidden states undo any factor but in their epsilon, which is divided by its square.
    """
    residual = positive(config, "residual_multiplier")
    eps = small(config, "rms_norm_eps") / residual**2
    return _with_biases(
        config.replacing(rms_norm_eps=eps),
        attention_scale=positive(config, "attention_multiplier"),
        embedding_scale=positive(config, "embedding_multiplier") / residual,
        logit_divisor=positive(config, "logits_scaling"),
    )


@family("Phi3Config")
def phi3_config(config: HfConfig) -> DecoderConfig:
    """Reads Phi-3 and Phi-4, whose first checkpoints call LongRoPE su or yarn; what is in blocks or
    codes of a checkpoint's own is refused."""
    if config.get("quantization_config") is not None:
        raise ModelError(
            f"{config['architectures'][0]} with quantization_config is not supported; use a GGUF "
            "file, or a checkpoint in floats"
        )
    return dense_config(
        config,
        read_rotation(config, rotates_part=True, su="longrope", yarn="longrope"),
        sliding_windows=uniform_windows(config),
        fused_projections=tuple(FUSED_PROJECTIONS),
    )


def _with_biases(config: HfConfig, **fields: Any) -> DecoderConfig:
    """Reads a family without windows whose projections may have biases."""
    check_no_windows(config)
    bias = flag(config, "attention_bias")
    return dense_config(
        config, qkv_bias=bias, o_bias=bias, mlp_bias=flag(config, "mlp_bias"), **fields
    )


def dense_config(
    config: HfConfig, rotation: RopeParameters | None = None, **fields: Any
) -> DecoderConfig:
    """Reads a family whose gate is a SiLU.

    Args:
        rotation: None reads it as in most families.
        fields: of the result, which families read in ways of their own.
    """
    architecture = checked_architecture(config)
    return DecoderConfig(**decoder_shapes(config, rotation), **fields, architecture=architecture)


def checked_architecture(config: HfConfig) -> str:
    """Returns the architecture. Raises ModelError unless its gate is a SiLU."""
    architecture, activation = config["architectures"][0], config.get("hidden_act")
    if activation not in ("silu", "swish"):
        raise ModelError(
            f"{architecture} with hidden_act {activation!r} is not supported; use silu"
        )
    return str(architecture)


def is_causal(config: HfConfig) -> bool:
    """Says whether tokens see those before them alone; to transformers' masks null says no."""
    return bool(config.get("is_causal", True))


def decoder_shapes(config: HfConfig, rotation: RopeParameters | None = None) -> dict[str, Any]:
    """Returns the fields of a DecoderConfig that have one name in all families.

    Args:
        rotation: None reads it as in most families.
    """
    sizes, rotation = decoder_sizes(config), rotation or read_rotation(config)
    rope = rotation.config(sizes["head_size"])
    return sizes | {"rope": rope, "max_position": rotation.served_length}


def decoder_sizes(config: HfConfig) -> dict[str, Any]:
    """Returns those of `decoder_shapes` that do not depend on the rotation."""
    num_heads = counted(config, "num_attention_heads")
    num_kv_heads = counted(config, "num_key_value_heads", num_heads)
    if num_heads % num_kv_heads:
        raise UnsoundConfig(
            f"config.json says num_attention_heads = {num_heads}, which num_key_value_heads = "
            f"{num_kv_heads} does not divide"
        )
    hidden_size = counted(config, "hidden_size")
    return {
        "vocab_size": counted(config, "vocab_size"),
        "hidden_size": hidden_size,
        "intermediate_size": counted(config, "intermediate_size"),
        "num_layers": counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS),
        "num_heads": num_heads,
        "num_kv_heads": num_kv_heads,
        "head_size": counted(config, "head_dim", hidden_size // num_heads, most=MAX_HEAD_SIZE),
        "rms_norm_eps": small(config, "rms_norm_eps"),
        "tie_embeddings": flag(config, "tie_word_embeddings"),
        "is_bidirectional": not is_causal(config),
    }


def _qwen_windows(config: HfConfig) -> tuple[int | None, ...]:
    """Returns the windows of Qwen: only if enabled, in the layers past max_window_layers."""
    enabled, window = flag(config, "use_sliding_window"), config.get("sliding_window")
    first_layer = counted(config, "max_window_layers", least=0)
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    slides = [enabled and window is not None and i >= first_layer for i in range(num_layers)]
    return sliding_windows(config, slides, window if enabled else None)


def uniform_windows(config: HfConfig) -> tuple[int | None, ...]:
    """Returns the windows of a family whose layers are all alike."""
    window = config.get("sliding_window")
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    slides = [window is not None] * num_layers
    windows = sliding_windows(config, slides, window)
    if [one is not None for one in windows] != slides:
        raise ModelError(
            f"{config['architectures'][0]} with layer_types of several kinds is not supported, "
            "since its layers are alike; use another model, or take the field out"
        )
    return windows


def check_no_windows(config: HfConfig) -> None:
    """Raises ModelError for a window of a family without, as transformers' caches read it."""
    longest = counted(config, "max_position_embeddings")
    if window := next((one for one in uniform_windows(config) if one and one < longest), None):
        raise ModelError(
            f"{config['architectures'][0]} with sliding_window {window} is not supported, since "
            "its layers have none; use the family that the window is of, or take the field out"
        )


def periodic_windows(config: HfConfig, period: int, window: int | None) -> tuple[int | None, ...]:
    """Returns the windows of layers, of which the last of each `period` sees all, unless
    layer_types says it."""
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    slides = [bool((i + 1) % period) for i in range(num_layers)]
    return sliding_windows(config, slides, window)


def sliding_windows(
    config: HfConfig, slides: Sequence[bool], window: int | None
) -> tuple[int | None, ...]:
    """Returns the windows of layers.

    Args:
        slides: whether each layer has a window, unless layer_types says it.
    """
    kinds = config.get("layer_types")
    if kinds is not None:
        if not isinstance(kinds, list) or len(kinds) != len(slides):
            raise UnsoundConfig(
                f"config.json does not give the layer_types of {len(slides)} layers"
            )
        if others := [one for one in kinds if not isinstance(one, str) or one not in _KINDS]:
            raise ModelError(f"layer_types of {str(others[0])[:40]!r} are not supported")
        slides = [_KINDS[kind] for kind in kinds]
    if not any(slides):
        return (None,) * len(slides)
    if window is None:
        raise UnsoundConfig("config.json gives layer_types with a window, and no sliding_window")
    # Without causality, transformers counts the distance instead of the tokens.
    seen = counted({"sliding_window": window}, "sliding_window") + (not is_causal(config))
    return tuple(seen if each else None for each in slides)

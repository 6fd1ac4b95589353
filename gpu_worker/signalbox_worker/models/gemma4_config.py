"""Configuration of Gemma 4 (text), whose layers differ from each other.

Layers that see all have heads of another size than those with a window, perhaps fewer K, which may
be V, too. The last layers have no K and V of their own. Each layer may have an input of its own.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    FULL,
    MAX_HEAD_SIZE,
    SLIDING,
    DecoderConfig,
    LayerHeads,
    decoder_sizes,
    periodic_windows,
)
from signalbox_worker.models.family_config import FamilyConfig, UnsoundConfig, counted, family, flag
from signalbox_worker.models.gemma_config import GELU_TANH, soft_cap
from signalbox_worker.models.mixture_config import (
    MAX_NUM_EXPERTS,
    QWEN_EXPERTS,
    MoeConfig,
    moe_config,
)
from signalbox_worker.models.rope import FrequencyDivisors, RopeConfig
from signalbox_worker.models.rope_config import RopeParameters, parameters_of, read_layer_rotations

_PERIOD = 6
"""Every so many layers one sees all, unless layer_types says it."""
_FULL_HEAD_SIZE = 512
"""Size of the heads of layers that see all, where config.json says none."""
_ROTATIONS: Mapping[str, Any] = {
    SLIDING: {"rope_type": "default", "rope_theta": 10_000.0},
    FULL: {
        "rope_type": "proportional",
        "partial_rotary_factor": 0.25,
        "rope_theta": 1_000_000.0,
    },
}
MIXTURE = "moe"
"""Name of the mixture in a layer, whose parts checkpoints have in the layer itself."""
_OF_FULL_LAYERS = {"head_dim", "num_key_value_heads"}
"""Fields that per_layer_config may say of layers that see all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gemma4Config(DecoderConfig):
    """A decoder whose heads are those of the layers with a window."""

    full_head_size: int
    full_kv_heads: int
    values_are_keys: bool
    """True if layers that see all have no matrix of V, which is K before its norm."""
    num_shared_layers: int
    """Last layers, which read K and V of the last one of their kind before them."""
    widens_shared_layers: bool
    """True if the feed-forward of these is twice as wide."""
    experts: MoeConfig | None
    """Mixture beside the feed-forward of each layer, if there is one."""
    layer_input_size: int
    """Columns of the input that each layer has of its own; 0 is none."""

    def heads_of(self, layer: int) -> LayerHeads:
        is_full = self.sliding_windows[layer] is None
        projections = "qk" if is_full and self.values_are_keys else "qkv"
        return LayerHeads(
            self.num_heads,
            self.full_kv_heads if is_full else self.num_kv_heads,
            self.full_head_size if is_full else self.head_size,
            "q" if self.kv_layer(layer) != layer else projections,
        )

    def kv_layer(self, layer: int) -> int:
        first_shared, windows = self.num_layers - self.num_shared_layers, self.sliding_windows
        if layer < first_shared:
            return layer
        return max(i for i in range(first_shared) if windows[i] == windows[layer])

    def inner_size(self, layer: int) -> int:
        is_wide = self.widens_shared_layers and self.kv_layer(layer) != layer
        return self.intermediate_size * (2 if is_wide else 1)

    @property
    def rope_head_size(self) -> int:
        return self.full_head_size


@family("Gemma4TextConfig")
def gemma4_config(config: FamilyConfig) -> Gemma4Config:
    architecture, activation = config["architectures"][0], config["hidden_activation"]
    if activation != GELU_TANH:
        raise ModelError(f"{architecture} with hidden_activation {activation!r} is not supported")
    if config["use_bidirectional_attention"] == "all":
        raise ModelError(f"{architecture} whose tokens see later ones is not supported")
    sizes, windows = decoder_sizes(config), _windows(config)
    size, kv_heads = _full_heads(config, sizes, windows)
    rotation, sliding = _rotations(config)
    bias, scale = flag(config, "attention_bias"), sizes["hidden_size"] ** 0.5
    read = Gemma4Config(
        **sizes,
        architecture=architecture,
        rope=_full_rope(rotation, size),
        sliding_rope=sliding.config(sizes["head_size"]),
        max_position=rotation.max_position,
        activation=GELU_TANH,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        norms_values=True,
        has_inner_norms=True,
        attention_scale=1.0,
        embedding_scale=scale,
        rounds_embedding_scale=True,
        logit_soft_cap=soft_cap(config, "final_logit_softcapping"),
        sliding_windows=windows,
        full_head_size=size,
        full_kv_heads=kv_heads,
        values_are_keys=flag(config, "attention_k_eq_v"),
        num_shared_layers=counted(config, "num_kv_shared_layers", 0, least=0),
        widens_shared_layers=flag(config, "use_double_wide_mlp"),
        experts=None,
        layer_input_size=_layer_input_size(config, sizes["vocab_size"]),
    )
    _check_shared(read)
    if flag(config, "enable_moe_block"):
        return replace(read, experts=_experts(config, read))
    config.disregard("num_experts", "top_k_experts", "moe_intermediate_size")
    return read


def _layer_input_size(config: FamilyConfig, vocab_size: int) -> int:
    size = counted(config, "hidden_size_per_layer_input", 0, least=0)
    num_rows = counted(config, "vocab_size_per_layer_input")
    if size and num_rows < vocab_size:
        raise UnsoundConfig(
            f"config.json says vocab_size_per_layer_input = {num_rows}, which lacks tokens"
        )
    return size


def _experts(config: FamilyConfig, base: DecoderConfig) -> MoeConfig:
    return moe_config(
        base,
        num_experts=counted(config, "num_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "top_k_experts"),
        expert_size=counted(config, "moe_intermediate_size"),
        renormalise=True,
        block=MIXTURE,
        names=QWEN_EXPERTS,
        router_has_norm=True,
    )


def _windows(config: FamilyConfig) -> tuple[int | None, ...]:
    """Returns the layers' windows; the last layer sees all, whatever layer_types says."""
    windows = periodic_windows(config, _PERIOD, config["sliding_window"])
    return (*windows[:-1], None)


def _full_heads(
    config: FamilyConfig, sizes: Mapping[str, Any], windows: tuple[int | None, ...]
) -> tuple[int, int]:
    """Returns size and number of the K and V heads of layers that see all, which stand in
    per_layer_config of later files."""
    kv_heads, given = sizes["num_kv_heads"], config["per_layer_config"]
    if given is None:
        own = config["num_global_key_value_heads"]
        if flag(config, "attention_k_eq_v") and own is not None:
            kv_heads = counted(config, "num_global_key_value_heads")
        size = counted(config, "global_head_dim", _FULL_HEAD_SIZE, most=MAX_HEAD_SIZE)
        return size, _dividing(sizes, kv_heads)
    config.disregard("global_head_dim", "num_global_key_value_heads")
    layers = given if isinstance(given, Mapping) else {}
    full = [layers.get(str(i)) for i, window in enumerate(windows) if window is None]
    own = full[0]
    is_of_full = isinstance(own, Mapping) and own.keys() <= _OF_FULL_LAYERS
    if not is_of_full or any(one != own for one in full) or len(layers) != len(full):
        raise ModelError(
            f"{config['architectures'][0]} with a per_layer_config of other fields than "
            f"{' and '.join(sorted(_OF_FULL_LAYERS))} of the layers that see all is not supported"
        )
    assert isinstance(own, Mapping)
    kv_heads = counted(own, "num_key_value_heads", kv_heads)
    size = counted(own, "head_dim", sizes["head_size"], most=MAX_HEAD_SIZE)
    return size, _dividing(sizes, kv_heads)


def _dividing(sizes: Mapping[str, Any], kv_heads: int) -> int:
    if sizes["num_heads"] % kv_heads:
        raise UnsoundConfig(
            f"config.json says num_attention_heads = {sizes['num_heads']}, which {kv_heads} heads "
            "of K and V do not divide"
        )
    return kv_heads


def _rotations(config: FamilyConfig) -> tuple[RopeParameters, RopeParameters]:
    """Returns those of layers that see all, which may be of a kind of their own, and of others."""
    given = parameters_of(config, "rope_parameters")
    nested = dict(_ROTATIONS if config["rope_parameters"] is None else given)
    thetas = {FULL: "rope_theta", SLIDING: "rope_theta"}
    own = nested.get(FULL)
    if not isinstance(own, Mapping) or own.get("rope_type") != "proportional":
        read = read_layer_rotations(config.replacing(rope_parameters=nested), thetas, scaled=())
        return read[FULL], read[SLIDING]
    nested[FULL] = {"rope_type": "default", "rope_theta": own.get("rope_theta")}
    read = read_layer_rotations(config.replacing(rope_parameters=nested), thetas, scaled=())
    full = read[FULL]
    return RopeParameters("proportional", full.theta, own, full.max_position), read[SLIDING]


def _full_rope(rotation: RopeParameters, head_size: int) -> RopeConfig:
    """Returns a rotation of which a part of the frequencies, those of the whole head, turns."""
    if rotation.kind != "proportional":
        return rotation.config(head_size)
    part, factor = (
        rotation.parameters.get(name, 1.0) for name in ("partial_rotary_factor", "factor")
    )
    if not all(type(one) in (int, float) and one > 0 for one in (part, factor)) or part > 1:
        raise UnsoundConfig("config.json has a proportional rotation of no part of the head")
    turned, total = int(part * head_size // 2), head_size // 2
    divisors = (float(factor),) * turned + (math.inf,) * (total - turned)
    return RopeConfig(theta=rotation.theta, scaling=FrequencyDivisors(divisors))


def _check_shared(config: Gemma4Config) -> None:
    """Raises UnsoundConfig for a layer without one before it whose K and V it could read."""
    shared, windows = config.num_shared_layers, config.sliding_windows
    first = config.num_layers - shared
    if first < 0 or (shared and not set(windows[first:]) <= set(windows[:first])):
        raise UnsoundConfig(
            f"config.json says num_kv_shared_layers = {shared}, and no layer of each kind has K "
            "and V of its own"
        )

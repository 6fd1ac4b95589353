"""Configuration of decoders whose attention caches one latent vector for all heads.

Multi-head latent attention (DeepSeek-V2, 2024): K and V of all heads are products of the latent,
but for a part of K that is rotated, which all heads share, too.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from signalbox_kernels.structs import PANEL
from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    MAX_HEAD_SIZE,
    DecoderConfig,
    LatentSizes,
    check_no_windows,
    checked_architecture,
    decoder_sizes,
)
from signalbox_worker.models.family_config import (
    FamilyConfig,
    UnsoundConfig,
    counted,
    family,
    flag,
    positive,
)
from signalbox_worker.models.mixture_config import (
    ExpertChoice,
    MoeConfig,
    biased_choice,
    first_layers,
    moe_config,
    routed_and_shared,
)
from signalbox_worker.models.rope_config import read_rotation


@family("DeepseekV2Config")
def deepseek_v2_config(config: FamilyConfig) -> MoeConfig:
    """Reads DeepSeek V2; like transformers it passes over norm_topk_prob and moe_layer_freq."""
    base = _latent_config(config, rotates_neighbours=True)
    if flag(config, "mlp_bias"):
        raise ModelError(f"{base.architecture} with mlp_bias is not supported natively")
    return moe_config(
        base,
        renormalise=False,
        dense_layers=first_layers(config, base.num_layers),
        choice=_groups_by_their_best(config),
        **routed_and_shared(config),
    )


@family("DeepseekV3Config")
def deepseek_v3_config(config: FamilyConfig) -> MoeConfig:
    return _with_biased_choice(config, first_layers)


@family("Glm4MoeLiteConfig")
def glm4_moe_lite_config(config: FamilyConfig) -> MoeConfig:
    """Reads GLM-4.7-Flash."""
    return _with_biased_choice(config, _dense_layers)


def _with_biased_choice(
    config: FamilyConfig, dense_layers: Callable[[FamilyConfig, int], frozenset[int]]
) -> MoeConfig:
    """Args: dense_layers: returns the layers with a plain feed-forward, of so many layers."""
    neighbours = flag(config, "rope_interleave")
    base = _latent_config(config, rotates_neighbours=neighbours, may_have_more_layers=True)
    return moe_config(
        base,
        renormalise=flag(config, "norm_topk_prob"),
        dense_layers=dense_layers(config, base.num_layers),
        choice=biased_choice(config),
        **routed_and_shared(config),
    )


def _dense_layers(config: FamilyConfig, num_layers: int) -> frozenset[int]:
    kinds = config["mlp_layer_types"]
    if kinds is None:
        return frozenset({0})
    are_kinds = isinstance(kinds, list) and all(one in ("dense", "sparse") for one in kinds)
    if not are_kinds or len(kinds) != num_layers:
        raise UnsoundConfig(
            f"config.json says no mlp_layer_types, dense or sparse, of {num_layers} layers"
        )
    return frozenset(i for i, kind in enumerate(kinds) if kind == "dense")


def _groups_by_their_best(config: FamilyConfig) -> ExpertChoice:
    method, scale = config["topk_method"], positive(config, "routed_scaling_factor")
    if method == "greedy":
        config.disregard("n_group", "topk_group")
        return ExpertChoice(scale=scale)
    if method != "group_limited_greedy":
        raise ModelError(
            f"{config['architectures'][0]} with topk_method {str(method)[:40]!r} is not supported; "
            "use greedy or group_limited_greedy"
        )
    num_groups = counted(config, "n_group")
    return ExpertChoice(
        num_groups=num_groups,
        num_chosen_groups=counted(config, "topk_group", most=num_groups),
        num_summed=1,
        scale=scale,
    )


def _latent_config(config: FamilyConfig, **fields: Any) -> DecoderConfig:
    """Reads the attention, and what it has in common with Llama's decoders."""
    check_no_windows(config)
    config.disregard("qk_head_dim")  # the sum of the sizes of its parts, whatever a file says
    architecture = checked_architecture(config)
    rank = config["q_lora_rank"]
    latents = LatentSizes(
        query_rank=None if rank is None else counted(config, "q_lora_rank"),
        size=_in_panels(config, "kv_lora_rank"),
        rotated=_in_panels(config, "qk_rope_head_dim"),
        unrotated=_in_panels(config, "qk_nope_head_dim"),
        value=_in_panels(config, "v_head_dim"),
    )
    rotation, bias = read_rotation(config), flag(config, "attention_bias")
    sizes = decoder_sizes(config)
    if sizes["num_kv_heads"] != sizes["num_heads"]:
        raise ModelError(
            f"{architecture} with num_key_value_heads {sizes['num_kv_heads']} is not supported, "
            f"since its {sizes['num_heads']} heads share one latent; use as many"
        )
    rope = rotation.config(latents.rotated)
    sizes |= {
        "num_kv_heads": 1,
        "head_size": latents.rotated + latents.size,
        "rope": replace(rope, num_rotated=latents.rotated),
    }
    return DecoderConfig(
        **sizes,
        architecture=architecture,
        max_position=rotation.served_length,
        latents=latents,
        qkv_bias=bias,
        o_bias=bias,
        attention_scale=(latents.rotated + latents.unrotated) ** -0.5 * rotation.score_factor,
        **fields,
    )


def _in_panels(config: FamilyConfig, name: str) -> int:
    """Reads a size of heads, whose columns native programs compute in panels."""
    size = counted(config, name, most=MAX_HEAD_SIZE)
    if size % PANEL:
        raise ModelError(
            f"{config['architectures'][0]} with {name} {size}, no multiple of {PANEL}, is not "
            "supported natively"
        )
    return size

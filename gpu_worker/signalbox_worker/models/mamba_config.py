"""Configurations of decoders with layers of Mamba-2: Granite 4 H and Nemotron-H."""

import math
from dataclasses import replace
from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    FULL,
    MAX_HEAD_SIZE,
    MAX_NUM_LAYERS,
    DecoderConfig,
    decoder_sizes,
    granite_config,
)
from signalbox_worker.models.family_config import (
    FamilyConfig,
    UnsoundConfig,
    counted,
    family,
    flag,
    small,
)
from signalbox_worker.models.hybrid_config import (
    LINEAR,
    MAX_STATE,
    check_no_window,
    check_silu,
    kernel,
    kinds_of_all,
    layer_kinds,
    places,
    refuse,
)
from signalbox_worker.models.mixture_config import (
    MAX_NUM_EXPERTS,
    QWEN_EXPERTS,
    biased_choice,
    moe_config,
)
from signalbox_worker.models.recurrence import Mamba2
from signalbox_worker.models.rope import RopeConfig
from signalbox_worker.models.rope_config import MAX_POSITION

_MLP, _MIXTURE = "mlp", "moe"
_LETTERS = {"M": LINEAR, "E": _MIXTURE, "*": FULL, "-": _MLP}
"""Kinds of layers of Nemotron-H in its first files."""
_OLD_NAMES = {
    "n_groups": "mamba_n_groups",
    "conv_kernel": "mamba_d_conv",
    "use_conv_bias": "mamba_conv_bias",
    "time_step_limit": "mamba_dt_limit",
}
"""Names of Nemotron-H's fields in its first files."""
_NEUTRAL = (
    *("time_step_min", "time_step_max", "time_step_floor", "expand", "chunk_size"),
    *("mamba_dt_min", "mamba_dt_max", "mamba_dt_init_floor", "mamba_expand", "mamba_chunk_size"),
    *("mtp_layers_block_type", "mtp_hybrid_override_pattern", "use_mamba_kernels"),
)
"""Fields of Nemotron-H of training, of how it is computed, and of layers that predict further
tokens."""
_OF_MIXTURES = (
    *("n_routed_experts", "num_experts_per_tok", "moe_intermediate_size", "moe_latent_size"),
    *("moe_shared_expert_intermediate_size", "norm_topk_prob", "n_group", "topk_group"),
    "routed_scaling_factor",
)


@family("GraniteMoeHybridConfig")
def granite_hybrid_config(config: FamilyConfig) -> DecoderConfig:
    """Reads Granite 4 H. Without experts the one that all tokens have is the feed-forward."""
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    kinds = config["layer_types"] or [LINEAR] * num_layers
    kinds = kinds_of_all(config, kinds, (LINEAR, FULL), num_layers)
    kind = config["position_embedding_type"]
    if kind not in (None, "nope", "rope"):
        raise ModelError(
            f"{config['architectures'][0]} with position_embedding_type {str(kind)[:40]!r} is not "
            "supported; use rope, nope or null"
        )
    shared, fields = counted(config, "shared_intermediate_size"), _granite_fields(config, kinds)
    if kind != "rope":
        fields["unrotated_layers"] = frozenset(range(num_layers))
    num_experts = counted(config, "num_local_experts", least=0, most=MAX_NUM_EXPERTS)
    if not num_experts:
        config.disregard("num_experts_per_tok", "intermediate_size")
        return _granite(config.replacing(intermediate_size=shared), fields)
    return moe_config(
        _granite(config, fields),
        num_experts=num_experts,
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "intermediate_size"),
        shared_size=shared,
        shared_name="shared_mlp",
        shared_has_gate=False,
        renormalise=True,
        block="block_sparse_moe",
        names=QWEN_EXPERTS,
        has_stacks=True,
    )


def _granite(config: FamilyConfig, fields: dict[str, Any]) -> DecoderConfig:
    return replace(granite_config(config.replacing(layer_types=None)), **fields)


def _granite_fields(config: FamilyConfig, kinds: list[str]) -> dict[str, Any]:
    hidden_size = counted(config, "hidden_size")
    num_heads = counted(config, "mamba_n_heads", most=MAX_HEAD_SIZE)
    inner = hidden_size * counted(config, "mamba_expand", most=MAX_HEAD_SIZE)
    size = config["mamba_d_head"]
    size = inner // num_heads if size == "auto" else counted(config, "mamba_d_head")
    if size * num_heads != inner:
        raise UnsoundConfig(
            f"config.json says mamba_n_heads = {num_heads} of mamba_d_head = {size}, which are not "
            f"mamba_expand times hidden_size, {inner}"
        )
    _check_time_step(config, "time_step_limit")
    config.disregard("mamba_chunk_size")
    return {
        "recurrence": _mamba(
            config,
            "mamba_n_heads",
            size,
            "mamba_n_groups",
            norm_eps=small(config, "rms_norm_eps"),
            state_size=counted(config, "mamba_d_state", most=MAX_STATE),
            kernel=kernel(config, "mamba_d_conv"),
            conv_bias=flag(config, "mamba_conv_bias"),
            proj_bias=flag(config, "mamba_proj_bias"),
        ),
        "recurrent_layers": places(kinds, LINEAR),
    }


@family("NemotronHConfig")
def nemotron_h_config(config: FamilyConfig) -> DecoderConfig:
    """Reads Nemotron-H, each layer of which is one part: Mamba-2, attention or a feed-forward.

    Its time steps have no least one, although transformers has `time_step_min` for prompts. Its
    head is a matrix of its own whatever `tie_word_embeddings` says, as in transformers.
    """
    kinds = _nemotron_kinds(config)
    check_no_window(config)
    check_silu(config, "mamba_hidden_act")
    _check_time_step(config, _name(config, "time_step_limit"))
    refuse(config, mlp_hidden_act="relu2")
    config.disregard(*_NEUTRAL, "tie_word_embeddings")
    config = config.replacing(
        num_hidden_layers=len(kinds),
        rms_norm_eps=config["layer_norm_epsilon"],
        num_key_value_heads=config["num_key_value_heads"] or config["num_attention_heads"],
        tie_word_embeddings=False,
    )
    base = DecoderConfig(
        **decoder_sizes(config),
        rope=RopeConfig(theta=10000.0),  # no layer rotates
        max_position=counted(config, "max_position_embeddings", most=MAX_POSITION),
        architecture=config["architectures"][0],
        activation="relu2",
        has_gate=False,
        mlp_bias=flag(config, "mlp_bias"),
        unrotated_layers=frozenset(range(len(kinds))),
        has_one_part=True,
        feed_forward_layers=places(kinds, _MLP) | places(kinds, _MIXTURE),
        recurrence=_mamba(
            config,
            "mamba_num_heads",
            counted(config, "mamba_head_dim", most=MAX_HEAD_SIZE),
            _name(config, "n_groups"),
            norm_eps=small(config, "layer_norm_epsilon"),
            state_size=counted(config, "ssm_state_size", most=MAX_STATE),
            kernel=kernel(config, _name(config, "conv_kernel")),
            conv_bias=flag(config, _name(config, "use_conv_bias")),
            proj_bias=flag(config, "use_bias"),
        ),
        recurrent_layers=places(kinds, LINEAR),
    )
    if _MIXTURE in kinds:
        return _with_experts(config, base, kinds)
    config.disregard(*_OF_MIXTURES)
    return base


def _with_experts(config: FamilyConfig, base: DecoderConfig, kinds: list[str]) -> DecoderConfig:
    latent = config["moe_latent_size"]
    if base.mlp_bias:
        raise ModelError(f"{base.architecture} with mlp_bias is not supported of a mixture")
    return moe_config(
        base,
        num_experts=counted(config, "n_routed_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=counted(config, "moe_intermediate_size"),
        expert_columns=None if latent is None else counted(config, "moe_latent_size"),
        shared_size=counted(config, "moe_shared_expert_intermediate_size"),
        shared_name="shared_experts",
        shared_has_gate=False,
        renormalise=flag(config, "norm_topk_prob"),
        choice=biased_choice(config),
        dense_layers=places(kinds, _MLP),
        block="mlp",
        names=QWEN_EXPERTS,
    )


def _name(config: FamilyConfig, name: str) -> str:
    """Returns a field's name in the file, which may be the one of the first files."""
    old = _OLD_NAMES[name]
    if not config.says(old):
        return name
    config.disregard(name)
    return old


def _nemotron_kinds(config: FamilyConfig) -> list[str]:
    kinds, letters = config["layers_block_type"], config["hybrid_override_pattern"]
    if kinds is None:
        if not isinstance(letters, str) or not {*letters} <= _LETTERS.keys():
            raise UnsoundConfig(
                f"config.json says hybrid_override_pattern = {str(letters)[:40]}, which has other "
                f"letters than {' '.join(_LETTERS)}"
            )
        kinds = [_LETTERS[one] for one in letters]
    config.disregard("hybrid_override_pattern", "num_hidden_layers")
    return layer_kinds(config, kinds, _LETTERS.values(), name="layers_block_type")


def _check_time_step(config: FamilyConfig, name: str) -> None:
    """Raises ModelError for limits of time steps."""
    limit = config[name]
    # The second is how transformers writes infinity.
    if limit not in (None, [0.0, math.inf], [0.0, {"__float__": "Infinity"}]):
        raise ModelError(
            f"{config['architectures'][0]} with {name} {str(limit)[:40]} is not "
            "supported; use a model without limits"
        )


def _mamba(
    config: FamilyConfig, of_heads: str, head_size: int, of_groups: str, **fields: Any
) -> Mamba2:
    """Args: of_heads, of_groups: names of the fields that count heads and groups of them."""
    num_heads, num_groups = (
        counted(config, name, most=MAX_HEAD_SIZE) for name in (of_heads, of_groups)
    )
    if num_heads % num_groups:
        raise UnsoundConfig(
            f"config.json says {of_heads} = {num_heads}, which {of_groups} = {num_groups} does not "
            "divide"
        )
    return Mamba2(
        num_heads=num_heads,
        head_size=head_size,
        num_groups=num_groups,
        channels=num_heads * head_size + 2 * num_groups * fields["state_size"],
        **fields,
    )

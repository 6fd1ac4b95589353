"""Configurations of Qwen3-Next and Qwen3.5: the gated delta rule, and attention with gates."""

from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.hybrids import IN_TURN
from signalbox_worker.models.decoder_config import (
    FULL,
    MAX_HEAD_SIZE,
    MAX_NUM_LAYERS,
    DecoderConfig,
    dense_config,
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
    check_no_window,
    kernel,
    kinds_of_all,
    places,
)
from signalbox_worker.models.mixture_config import (
    MAX_NUM_EXPERTS,
    QWEN_EXPERTS,
    MoeConfig,
    moe_config,
    qwen_moe_config,
)
from signalbox_worker.models.recurrence import DeltaRule
from signalbox_worker.models.rope_config import read_rotation


@family("Qwen3NextConfig")
def qwen3_next_config(config: FamilyConfig) -> MoeConfig:
    return qwen_moe_config(
        config,
        _gated_delta_config(config),
        shared_size=counted(config, "shared_expert_intermediate_size"),
    )


@family("Qwen3_5TextConfig")
def qwen3_5_config(config: FamilyConfig) -> DecoderConfig:
    return _gated_delta_config(config)


@family("Qwen3_5MoeTextConfig")
def qwen3_5_moe_config(config: FamilyConfig) -> MoeConfig:
    """Reads a mixture in all layers, whose chosen shares are always normalised."""
    expert_size = counted(config, "moe_intermediate_size")
    return moe_config(
        _gated_delta_config(config.replacing(intermediate_size=expert_size)),
        num_experts=counted(config, "num_experts", most=MAX_NUM_EXPERTS),
        experts_per_token=counted(config, "num_experts_per_tok"),
        expert_size=expert_size,
        shared_size=counted(config, "shared_expert_intermediate_size"),
        renormalise=True,
        block="mlp",
        names=QWEN_EXPERTS,
    )


def _gated_delta_config(config: FamilyConfig) -> DecoderConfig:
    """Reads what all of them share; three positions of rotation are equal for text."""
    check_no_window(config)
    if config.get("attn_output_gate") is False:
        raise ModelError(
            f"{config['architectures'][0]} with attn_output_gate false is not supported; use a "
            "model whose attention has gates"
        )
    rotation, bias = read_rotation(config, rotates_part=True), flag(config, "attention_bias")
    return dense_config(
        config,
        rotation,
        qkv_bias=bias,
        o_bias=bias,
        qk_norm=True,
        norm_offset=1.0,
        gates_attention=True,
        recurrence=_delta_rule(config),
        recurrent_layers=places(_kinds(config), LINEAR),
    )


def _kinds(config: FamilyConfig) -> list[str]:
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    kinds, name = config["layer_types"], "layer_types"
    if kinds is None:
        period = counted(config, name := "full_attention_interval")
        kinds = [LINEAR if (i + 1) % period else FULL for i in range(num_layers)]
    else:
        config.disregard("full_attention_interval")
    return kinds_of_all(config, kinds, (LINEAR, FULL), num_layers, name=name)


def _delta_rule(config: FamilyConfig) -> DeltaRule:
    sizes: dict[str, Any] = {
        ours: counted(config, f"linear_{theirs}", most=MAX_HEAD_SIZE)
        for ours, theirs in (
            ("num_key_heads", "num_key_heads"),
            ("key_size", "key_head_dim"),
            ("num_value_heads", "num_value_heads"),
            ("value_size", "value_head_dim"),
        )
    }
    keys, values = sizes["num_key_heads"], sizes["num_value_heads"]
    if values % keys:
        raise UnsoundConfig(
            f"config.json says linear_num_value_heads = {values}, which linear_num_key_heads = "
            f"{keys} does not divide"
        )
    return DeltaRule(
        **sizes,
        channels=2 * keys * sizes["key_size"] + values * sizes["value_size"],
        kernel=kernel(config, "linear_conv_kernel_dim"),
        conv_bias=False,
        proj_bias=False,
        norm_eps=small(config, "rms_norm_eps"),
        heads_in_turn=flag(config, IN_TURN),
    )

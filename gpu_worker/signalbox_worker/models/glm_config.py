"""Configurations of GLM and GLM-4, which rotate neighbouring elements of a part of each head."""

from typing import Any

from signalbox_worker.models.decoder_config import (
    DecoderConfig,
    HfConfig,
    check_no_windows,
    dense_config,
)
from signalbox_worker.models.family_config import family, flag
from signalbox_worker.models.rope_config import read_rotation


@family("GlmConfig")
def glm_config(config: HfConfig) -> DecoderConfig:
    return _dense(config)


@family("Glm4Config")
def glm4_config(config: HfConfig) -> DecoderConfig:
    names = "post_self_attn_layernorm", "post_mlp_layernorm"
    return _dense(config, has_inner_norms=True, inner_norms=names)


def _dense(config: HfConfig, **fields: Any) -> DecoderConfig:
    return glm_like(
        config, rotates_neighbours=True, fused_projections=("mlp.gate_up_proj",), **fields
    )


def glm_like(config: HfConfig, **fields: Any) -> DecoderConfig:
    """Reads what GLM and its mixtures share."""
    check_no_windows(config)
    rotation = read_rotation(config, rotates_part=True)
    return dense_config(config, rotation, qkv_bias=flag(config, "attention_bias"), **fields)

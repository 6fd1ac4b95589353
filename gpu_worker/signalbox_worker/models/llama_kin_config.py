"""Configurations of decoders that differ from Llama in a flag or two."""

from signalbox_worker.models.decoder_config import (
    DecoderConfig,
    HfConfig,
    check_no_windows,
    dense_config,
)
from signalbox_worker.models.family_config import family, flag


@family("HeliumConfig")
def helium_config(config: HfConfig) -> DecoderConfig:
    """Reads Helium, which rotates neighbouring elements."""
    check_no_windows(config)
    return dense_config(
        config,
        qkv_bias=flag(config, "attention_bias"),
        mlp_bias=flag(config, "mlp_bias"),
        rotates_neighbours=True,
    )


@family("SeedOssConfig")
def seed_oss_config(config: HfConfig) -> DecoderConfig:
    check_no_windows(config)
    return dense_config(
        config,
        qkv_bias=flag(config, "attention_bias"),
        o_bias=flag(config, "attention_out_bias"),
        mlp_bias=flag(config, "mlp_bias"),
    )

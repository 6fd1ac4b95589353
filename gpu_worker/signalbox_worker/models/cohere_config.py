"""Configuration of Cohere's decoders, whose attention and feed-forward read one LayerNorm."""

from typing import Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    DecoderConfig,
    check_no_windows,
    dense_config,
    periodic_windows,
)
from signalbox_worker.models.family_config import (
    FamilyConfig,
    counted,
    family,
    flag,
    positive,
    small,
)


@family("CohereConfig")
def cohere_config(config: FamilyConfig) -> DecoderConfig:
    if flag(config, "use_qk_norm"):
        raise ModelError(f"{config['architectures'][0]} with use_qk_norm is not supported natively")
    check_no_windows(config)
    return _cohere_config(config)


@family("Cohere2Config")
def cohere2_config(config: FamilyConfig) -> DecoderConfig:
    """Reads Cohere 2, of which layers with a window alone rotate."""
    period = counted(config, "sliding_window_pattern")
    windows = periodic_windows(config, period, config["sliding_window"])
    unrotated = frozenset(i for i, window in enumerate(windows) if window is None)
    if not config.says("head_dim"):  # the class's default follows from its other sizes
        config = config.replacing(head_dim=None)
    return _cohere_config(config, sliding_windows=windows, unrotated_layers=unrotated)


def _cohere_config(config: FamilyConfig, **fields: Any) -> DecoderConfig:
    bias = flag(config, "attention_bias")
    return dense_config(
        config.replacing(rms_norm_eps=small(config, "layer_norm_eps")),
        qkv_bias=bias,
        o_bias=bias,
        norm_is_centred=True,
        is_parallel=True,
        rotates_neighbours=True,
        logit_divisor=1 / positive(config, "logit_scale"),
        **fields,
    )

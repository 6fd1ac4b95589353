"""Configuration of decoders whose layers norm the results of attention and feed-forward alone."""

from dataclasses import replace
from typing import Any

from signalbox_worker.models.decoder_config import (
    FULL,
    SLIDING,
    DecoderConfig,
    HfConfig,
    check_no_windows,
    dense_config,
    olmo_like,
    periodic_windows,
)
from signalbox_worker.models.family_config import FamilyConfig, counted, family
from signalbox_worker.models.rope_config import RopeParameters, read_layer_rotations

_PERIOD = 4
_NORMS: dict[str, Any] = {"has_input_norms": False, "has_inner_norms": True}


@family("Olmo2Config")
def olmo2_config(config: HfConfig) -> DecoderConfig:
    check_no_windows(config)
    return _olmo_config(config)


@family("Olmo3Config")
def olmo3_config(config: FamilyConfig) -> DecoderConfig:
    """Reads OLMo 3; every fourth layer sees all, unless layer_types says it."""
    full, sliding = _rotations(config)
    windows = periodic_windows(config, _PERIOD, config["sliding_window"])
    base = _olmo_config(config, full, sliding_windows=windows)
    return replace(base, sliding_rope=sliding.config(base.head_size))


@family("Exaone4Config")
def exaone4_config(config: FamilyConfig) -> DecoderConfig:
    """Reads EXAONE 4, of which layers with a window alone rotate, if any has one."""
    window, period = config["sliding_window"], 1
    if window is not None and config.get("layer_types") is None:
        period = counted(config, "sliding_window_pattern")
    config.disregard("sliding_window_pattern")
    windows = periodic_windows(config, period, window)
    see_all = frozenset(i for i, one in enumerate(windows) if one is None)
    return dense_config(
        config,
        qk_norm=True,
        sliding_windows=windows,
        unrotated_layers=frozenset() if window is None else see_all,
        **_NORMS,
    )


def _olmo_config(
    config: HfConfig, rotation: RopeParameters | None = None, **fields: Any
) -> DecoderConfig:
    return olmo_like(config, rotation, **_NORMS, **fields)


def _rotations(config: FamilyConfig) -> tuple[RopeParameters, RopeParameters]:
    """Returns the rotations of layers that see all and of those with a window.

    As in transformers, the base at the top level is that of the layers that see all.
    """
    full = read_layer_rotations(config, {FULL: "rope_theta"}, scaled=(FULL,))[FULL]
    usual = config.replacing(rope_theta=config.default("rope_theta"))
    return full, read_layer_rotations(usual, {SLIDING: "rope_theta"}, scaled=())[SLIDING]

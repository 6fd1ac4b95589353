"""Configuration of SmolLM3, some of whose layers have no positions (NoPE)."""

from signalbox_worker.models.decoder_config import (
    MAX_NUM_LAYERS,
    DecoderConfig,
    dense_config,
    sliding_windows,
)
from signalbox_worker.models.family_config import FamilyConfig, UnsoundConfig, counted, family, flag


@family("SmolLM3Config")
def smollm3_config(config: FamilyConfig) -> DecoderConfig:
    """Reads SmolLM3, whose layers without positions have the window, unless layer_types says it."""
    rotates, window = _rotates(config), config["sliding_window"]
    enabled = flag(config, "use_sliding_window") and window is not None
    bias = flag(config, "attention_bias")
    return dense_config(
        config,
        qkv_bias=bias,
        o_bias=bias,
        mlp_bias=flag(config, "mlp_bias"),
        sliding_windows=sliding_windows(config, [enabled and not one for one in rotates], window),
        unrotated_layers=frozenset(i for i, one in enumerate(rotates) if not one),
    )


def _rotates(config: FamilyConfig) -> list[bool]:
    """Says of each layer whether it rotates; the interval is of files without a list."""
    num_layers = counted(config, "num_hidden_layers", most=MAX_NUM_LAYERS)
    given = config["no_rope_layers"]  # 1 of those that rotate
    if given is None:
        interval = counted(config, "no_rope_layer_interval")
        return [(i + 1) % interval != 0 for i in range(num_layers)]
    config.disregard("no_rope_layer_interval")
    if not isinstance(given, list) or len(given) < num_layers:
        raise UnsoundConfig(f"config.json does not give the no_rope_layers of {num_layers} layers")
    return [bool(one) for one in given[:num_layers]]

"""Configuration of Ministral 3, whose queries grow with the position."""

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import (
    DecoderConfig,
    HfConfig,
    dense_config,
    uniform_windows,
)
from signalbox_worker.models.family_config import family
from signalbox_worker.models.rope_config import read_rotation


@family("Ministral3Config")
def ministral3_config(config: HfConfig) -> DecoderConfig:
    rotation = read_rotation(config)
    scaling = rotation.query_scaling()
    if scaling is None:
        raise ModelError(
            f"{config['architectures'][0]} without llama_4_scaling_beta in rope_parameters or "
            "rope_scaling is not supported natively"
        )
    windows = uniform_windows(config)
    return dense_config(config, rotation, sliding_windows=windows, query_scaling=scaling)

"""Models that a worker can serve, and the registry that finds them."""

from gpu_worker.models.decoder_config import DecoderConfig
from gpu_worker.models.registry import (
    Model,
    ModelSpec,
    ServedConfig,
    SoftCapped,
    Stretched,
    architectures,
    find_model,
    model_spec,
    register_model,
)

__all__ = [
    "DecoderConfig",
    "Model",
    "ModelSpec",
    "ServedConfig",
    "SoftCapped",
    "Stretched",
    "architectures",
    "find_model",
    "model_spec",
    "register_model",
]

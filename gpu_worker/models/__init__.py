"""Models that a worker can serve, and the registry that finds them."""

from gpu_worker.config import ModelError
from gpu_worker.models.decoder_config import DecoderConfig, decoder_shapes
from gpu_worker.models.registry import (
    HasSinks,
    Model,
    ModelSpec,
    ServedConfig,
    SoftCapped,
    Staged,
    Stretched,
    TakesAdapters,
    architectures,
    find_model,
    has_native_program,
    model_spec,
    register_model,
)

__all__ = [
    "DecoderConfig",
    "HasSinks",
    "Model",
    "ModelError",
    "ModelSpec",
    "ServedConfig",
    "SoftCapped",
    "Staged",
    "Stretched",
    "TakesAdapters",
    "architectures",
    "decoder_shapes",
    "find_model",
    "has_native_program",
    "model_spec",
    "register_model",
]

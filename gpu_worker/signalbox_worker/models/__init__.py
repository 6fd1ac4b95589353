"""Models that a worker can serve, and the registry that finds them."""

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import DecoderConfig, decoder_shapes
from signalbox_worker.models.registry import (
    Encoder,
    HasSinks,
    Model,
    ModelSpec,
    Pooled,
    ServedConfig,
    SoftCapped,
    Staged,
    Stretched,
    TakesAdapters,
    Tied,
    architectures,
    find_model,
    has_native_program,
    model_spec,
    only_pools,
    register_model,
)

__all__ = [
    "DecoderConfig",
    "Encoder",
    "HasSinks",
    "Model",
    "ModelError",
    "ModelSpec",
    "Pooled",
    "ServedConfig",
    "SoftCapped",
    "Staged",
    "Stretched",
    "TakesAdapters",
    "Tied",
    "architectures",
    "decoder_shapes",
    "find_model",
    "has_native_program",
    "model_spec",
    "only_pools",
    "register_model",
]

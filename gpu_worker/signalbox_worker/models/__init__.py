"""Models that a worker can serve, and the registry that finds them."""

import warnings
from typing import TYPE_CHECKING, Any

from signalbox_worker.config import ModelError
from signalbox_worker.models.decoder_config import DecoderConfig, decoder_shapes
from signalbox_worker.models.model_shape import ModelShape
from signalbox_worker.models.registry import (
    ModelSpec,
    architectures,
    find_model,
    has_native_program,
    model_spec,
    only_pools,
    register_model,
)

if TYPE_CHECKING:
    from signalbox_worker.models.layers import Model

__all__ = [
    "DecoderConfig",
    "Model",
    "ModelError",
    "ModelShape",
    "ModelSpec",
    "architectures",
    "decoder_shapes",
    "find_model",
    "has_native_program",
    "model_spec",
    "only_pools",
    "register_model",
]


class _Protocol:
    """Stands for a protocol that is gone, where a package derives from it or names it as a type."""


def __getattr__(name: str) -> Any:
    """Returns `Model`, which imports PyTorch, or what stands for an old name, for one release."""
    if name == "Model":
        from signalbox_worker.models import layers

        return layers.Model
    if name != "ServedConfig":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "signalbox_worker.models.ServedConfig goes with the next release; see ModelShape, which has"
        " its attributes, with defaults",
        DeprecationWarning,
        stacklevel=2,
    )
    return _Protocol

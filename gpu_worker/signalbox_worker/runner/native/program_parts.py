"""Parts that native programs of decoders and of encoders share."""

from typing import Any

import numpy as np

from signalbox_kernels.floats import BFLOAT16
from signalbox_kernels.native import Isa, multiplies_bfloat16
from signalbox_kernels.program import ProgramShape
from signalbox_kernels.structs import Activation, Element
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.models.decoder_config import DecoderConfig
from signalbox_worker.models.encoder_config import EncoderConfig
from signalbox_worker.models.rope import RopeConfig
from signalbox_worker.runner.native.kv_places import KVPlaces

ACTIVATIONS = {
    "gelu": Activation.GELU,
    "gelu_new": Activation.GELU_TANH,
    "gelu_pytorch_tanh": Activation.GELU_TANH,
    "relu": Activation.RELU,
    "relu2": Activation.RELU_SQUARED,
    "silu": Activation.SILU,
}
"""Functions that native programs have, by their names in config.json."""

RESIDUAL = 0
"""Buffer of floats that layers add to: the hidden states at both ends of a pipeline stage, and at
the end of a model that is pooled."""

_KV_ELEMENTS = {
    "float32": Element.FLOAT32,
    "bfloat16": Element.BFLOAT16,
    "int8": Element.INT8,
    "fp8": Element.FP8_E4M3,
}


def program_shape(
    config: DecoderConfig | EncoderConfig,
    dtype: np.dtype[Any],
    *,
    isa: Isa,
    block_size: int,
    places: KVPlaces,
    kv_dtype: str = "auto",
) -> ProgramShape:
    """Returns the shape of a program whose weights have `dtype`, with the KV cache of `places`.

    Without instructions for bfloat16, a program of that dtype computes in float32.
    """
    latents = config.latents if isinstance(config, DecoderConfig) else None
    is_bfloat16 = dtype == BFLOAT16 and multiplies_bfloat16(isa)
    element = Element.BFLOAT16 if is_bfloat16 else Element.FLOAT32
    return ProgramShape(
        element=element,
        kv_element=element if kv_dtype == "auto" else _KV_ELEMENTS[kv_dtype],
        num_layers=places.num_layers,
        num_heads=config.num_heads,
        num_kv_heads=places.num_kv_heads,
        head_size=places.head_size,
        block_size=block_size,
        hidden_size=config.hidden_size,
        vocab_size=config.vocab_size,
        scale=config.scale,
        value_size=0 if latents is None else latents.size,
    )


def rotary_table(rope: RopeConfig, head_size: int, max_model_len: int) -> FloatArray:
    """Returns [max_model_len, 2, rotated / 2] float32, cosines and sines."""
    return np.stack(rope.cos_sin(head_size, max_model_len), axis=1)

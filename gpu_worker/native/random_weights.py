"""Random weights of a decoder (`load_format` "dummy"); the same values at every start."""

import zlib
from functools import partial

import numpy as np

from gpu_worker.batch.arrays import FloatArray
from gpu_worker.checkpoints.stored_tensor import StoredTensor
from gpu_worker.loading.dummy_source import SPREAD
from gpu_worker.models.decoder_config import DecoderConfig
from gpu_worker.native.weight_shapes import weight_shapes


def random_tensors(config: DecoderConfig) -> dict[str, StoredTensor]:
    """Returns all tensors of a decoder; those of norms are around 1."""
    return {
        name: StoredTensor(shape, partial(_values, name, shape))
        for name, shape in weight_shapes(config).items()
    }


def _values(name: str, shape: tuple[int, ...]) -> FloatArray:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    mean = 1.0 if "norm" in name else 0.0
    spread = generator.random(shape, dtype=np.float32)
    values: FloatArray = (2 * spread - 1) * np.float32(SPREAD) + np.float32(mean)
    return values

"""Random weights (`load_format` "dummy"); the same values at every start."""

import zlib
from collections.abc import Mapping
from functools import partial

import numpy as np

from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.runner.loading.dummy_source import SPREAD


def random_tensors(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, StoredTensor]:
    """Returns tensors of some shapes by name; those of norms are around 1."""
    return {
        name: StoredTensor(shape, partial(_values, name, shape)) for name, shape in shapes.items()
    }


def _values(name: str, shape: tuple[int, ...]) -> FloatArray:
    generator = np.random.default_rng(zlib.crc32(name.encode()))
    mean = 1.0 if "norm" in name.lower() else 0.0
    spread = generator.random(shape, dtype=np.float32)
    values: FloatArray = (2 * spread - 1) * np.float32(SPREAD) + np.float32(mean)
    return values

"""Memory in pages of its own, which returns to the system as soon as it is freed.

malloc keeps freed memory for later, or between other allocations, so that a model whose arrays are
replaced one by one would take twice its size.
"""

import mmap
from math import prod
from typing import Any

import numpy as np

from signalbox_kernels.floats import AnyArray

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, gets no huge pages


def map_pages(num_bytes: int) -> mmap.mmap:
    return mmap.mmap(-1, num_bytes, flags=_FLAGS)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    """Returns an array of zeros; no page is taken before it is written to."""
    size = prod(shape) * dtype.itemsize
    if size < mmap.PAGESIZE:
        return np.zeros(shape, dtype=dtype)
    return np.frombuffer(map_pages(size), dtype=dtype).reshape(shape)

"""Memory in pages of its own, which returns to the system as soon as it is freed.

malloc keeps freed memory for later, or between other allocations, so that a model whose arrays are
replaced one by one would take twice its size.
"""

import ctypes
import mmap
import weakref
from collections import deque
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray

_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, gets no huge pages
_PART_BYTES = 1 << 20
_spare: deque[mmap.mmap] = deque(maxlen=64)
"""Memory of parts that nothing refers to any more."""


def map_pages(num_bytes: int) -> mmap.mmap:
    """Raises MemoryError beyond the limit of the process."""
    try:
        return mmap.mmap(-1, num_bytes, flags=_FLAGS)
    except OSError as error:
        raise MemoryError(
            f"{num_bytes / (1 << 20):,.1f} MiB of memory were refused ({error.strerror}); raise the"
            " limit (of the container, or ulimit -v), or use a smaller model or --kv-cache-memory"
        ) from error


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> AnyArray:
    """Returns an array of zeros; no page is taken before it is written to."""
    size = prod(shape) * dtype.itemsize
    if size < mmap.PAGESIZE:
        return np.zeros(shape, dtype=dtype)
    return np.frombuffer(map_pages(size), dtype=dtype).reshape(shape)


def part(num_bytes: int) -> NDArray[np.uint8]:
    """Returns memory, not zeroed, for a part of a matrix, which has been that of an earlier part:
    new pages take longer than what is read into them."""
    try:
        region = _spare.pop()
    except IndexError:
        region = None
    if region is None or len(region) < num_bytes:
        region = map_pages(max(num_bytes, _PART_BYTES))
    lent = (ctypes.c_char * num_bytes).from_buffer(region)
    weakref.finalize(lent, _spare.append, region).atexit = False  # once no array refers to it
    return np.frombuffer(memoryview(lent), dtype=np.uint8)


def forget_parts() -> None:
    """Gives the memory of parts back to the system."""
    _spare.clear()


def joined_rows(parts: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    """Returns the rows of all parts of a matrix, [rows, bytes of a row]."""
    shape = sum(map(len, parts)), parts[0].shape[1]
    return np.concatenate(parts, out=part(prod(shape)).reshape(shape))

"""Memory in pages of its own, which returns to the system as soon as it is freed.

malloc keeps freed memory for later, or between other allocations, so that a model whose tensors are
replaced one by one would take twice its size.
"""

import ctypes
import mmap
import sys

import torch
from torch import Tensor

_POPULATE_WRITE = 23  # Linux 5.14's MADV_POPULATE_WRITE
_FLAGS = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # shared memory, the default, gets no huge pages


def map_pages(num_bytes: int) -> mmap.mmap:
    """Returns zeroed pages."""
    return mmap.mmap(-1, num_bytes, flags=_FLAGS)


def empty(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Returns a tensor of zeros on the CPU; no page is taken before it is written to."""
    size = torch.Size(shape).numel() * dtype.itemsize
    if size < mmap.PAGESIZE:
        return torch.zeros(shape, dtype=dtype)
    return torch.frombuffer(map_pages(size), dtype=dtype).view(shape)


def populate(memory: Tensor, *, start: int, end: int) -> bool:
    """Makes the system provide the whole pages in bytes [start, end) of a tensor on the CPU.

    Their contents stay, and other threads may write to them meanwhile. Returns False if the system
    cannot do that before the first write, or has no page left.
    """
    if not sys.platform.startswith("linux"):
        return False
    first = memory.data_ptr() + start
    page = first + -first % mmap.PAGESIZE
    size = (memory.data_ptr() + end - page) // mmap.PAGESIZE * mmap.PAGESIZE
    if size <= 0:
        return True
    libc = ctypes.CDLL(None)
    return not libc.madvise(ctypes.c_void_p(page), ctypes.c_size_t(size), _POPULATE_WRITE)

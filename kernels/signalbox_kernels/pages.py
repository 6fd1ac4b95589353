"""Memory in pages of its own, which returns to the system as soon as it is freed.

malloc keeps freed memory for later, or between other allocations, so that a model whose tensors are
replaced one by one would take twice its size.
"""

import mmap

import torch
from torch import Tensor

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

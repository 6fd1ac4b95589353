"""Memory for packed weights: large anonymous mappings, on huge pages where the system has them.

Weights are read front to back every step; huge pages save most of the translations.
"""

import ctypes
import mmap

import torch
from torch import Tensor

from signalbox_kernels.native import Element, library

_ALIGNMENT = 64
_REGION = 64 << 20
DTYPES = {torch.float32: Element.FLOAT32, torch.bfloat16: Element.BFLOAT16}


class Arena:
    """Hands out zeroed memory that lives as long as the arena."""

    def __init__(self, element: Element) -> None:
        self._element = element
        self._regions: list[mmap.mmap] = []
        self._tensors: list[Tensor] = []
        self._next = self._end = 0

    def allocate(self, size: int) -> int:
        """Returns the address of `size` bytes."""
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._next + size > self._end:
            self._grow(max(size, _REGION))
        address, self._next = self._next, self._next + size
        return address

    def _grow(self, size: int) -> None:
        region = mmap.mmap(-1, size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            region.madvise(mmap.MADV_HUGEPAGE)
        self._regions.append(region)
        self._next = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._end = self._next + size

    def pack(self, weight: Tensor, *, interleaved: bool = False) -> int:
        """Packs [out_features, in_features] of the arena's element; returns the address."""
        weight = weight.contiguous()
        assert DTYPES[weight.dtype] is self._element
        rows, columns = weight.shape
        lib = library()
        address = self.allocate(lib.sb_packed_bytes(self._element, rows, columns, interleaved))
        lib.sb_pack(self._element, weight.data_ptr(), rows, columns, interleaved, address)
        return address

    def keep(self, tensor: Tensor) -> int:
        """Holds on to a tensor as it is; returns its address."""
        tensor = tensor.contiguous()
        self._tensors.append(tensor)
        return tensor.data_ptr()

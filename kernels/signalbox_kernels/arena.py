"""Memory for packed weights: large anonymous mappings, on huge pages where the system has them.

Weights are read front to back every step; huge pages save most of the translations.
"""

import ctypes
import mmap
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.native import library
from signalbox_kernels.pages import map_pages
from signalbox_kernels.storage import Matrix, Storage, stored

_ALIGNMENT = 64
_REGION = 64 << 20


class Packed(NamedTuple):
    """A packed matrix: its address and how it is stored."""

    address: int
    num_rows: int
    type: Storage


class Arena:
    """Allocates zeroed memory that lives as long as the arena."""

    def __init__(self) -> None:
        self._regions: list[mmap.mmap] = []
        self._arrays: list[AnyArray] = []
        self._next = self._end = 0
        self._num_bytes = 0
        self._types: Counter[str] = Counter()

    @property
    def num_bytes(self) -> int:
        """Bytes of the packed matrices and of the arrays kept beside them."""
        return self._num_bytes + sum(array.nbytes for array in self._arrays)

    @property
    def description(self) -> str:
        """Types of the packed matrices, such as "matrices: 120 of Q4_1, 1 of Q8_0; 92 MiB"."""
        kinds = [f"{count} of {name}" for name, count in self._types.most_common()]
        return f"matrices: {', '.join(kinds)}; {self._num_bytes >> 20} MiB"

    def allocate(self, size: int) -> int:
        """Returns the address of `size` bytes."""
        size = -(-size // _ALIGNMENT) * _ALIGNMENT
        if self._next + size > self._end:
            self._grow(max(size, _REGION))
        address, self._next = self._next, self._next + size
        return address

    def _grow(self, size: int) -> None:
        region = map_pages(size)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            region.madvise(mmap.MADV_HUGEPAGE)
        self._regions.append(region)
        self._next = ctypes.addressof(ctypes.c_char.from_buffer(region))
        self._end = self._next + size

    def pack(self, weight: Matrix, *, interleaved: bool = False) -> Packed:
        """Packs [out_features, in_features] as it is stored."""
        return self.pack_all([weight], 1, interleaved=interleaved)

    def pack_all(
        self, weights: Iterable[Matrix], count: int, *, interleaved: bool = False
    ) -> Packed:
        """Packs `count` matrices of one shape and type one behind the other, each as it comes."""
        lib, packed, size = library(), None, 0
        for index, matrix in enumerate(map(stored, weights)):
            rows, columns = matrix.shape
            if packed is None:
                size = lib.sb_packed_bytes(matrix.type, rows, columns, interleaved)
                self._types[matrix.type.name] += count
                self._num_bytes += count * size
                packed = Packed(self.allocate(count * size), rows, matrix.type)
            assert (rows, matrix.type) == packed[1:], "matrices of one shape and type"
            blocks = np.ascontiguousarray(matrix.blocks)
            source, address = (blocks.ctypes.data, blocks.strides[0]), packed.address + index * size
            lib.sb_pack(matrix.type, *source, rows, columns, interleaved, address)
        assert packed is not None and index == count - 1
        return packed

    def keep(self, array: AnyArray) -> int:
        """Keeps an array alive, and contiguous; returns its address."""
        array = np.ascontiguousarray(array)
        self._arrays.append(array)
        return int(array.ctypes.data)

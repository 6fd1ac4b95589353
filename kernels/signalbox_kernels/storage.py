"""Matrices as files store them, and the conversion of floats to quantised blocks.

A block is a run of values along a row: 32 of them, 256 for the K types, or one that is a float.
Native programs compute with every type without converting a matrix.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels import pages
from signalbox_kernels.floats import BFLOAT16, AnyArray, to_float32
from signalbox_kernels.native import library

GROUP = 32
"""Values that share a scale, along the sum, on both sides of a product."""


class Storage(IntEnum):
    """Types of the blocks that a matrix is stored in, with ggml's numbers."""

    F32 = 0
    F16 = 1
    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14
    BF16 = 30

    @property
    def is_quantised(self) -> bool:
        """True for codes with scales; False for floats."""
        return self.block_size > 1

    @property
    def block_size(self) -> int:
        return 1 if self in _FLOATS else 256 if self >= Storage.Q4_K else GROUP

    @property
    def block_bytes(self) -> int:
        return _BLOCK_BYTES[self]


_FLOATS = {
    Storage.F32: np.dtype(np.float32),
    Storage.F16: np.dtype(np.float16),
    Storage.BF16: BFLOAT16,
}
QUANTISED = tuple(kind for kind in Storage if kind not in _FLOATS)
"""The types that are codes with scales."""

_BLOCK_BYTES = {
    Storage.F32: 4,
    Storage.F16: 2,
    Storage.BF16: 2,
    Storage.Q4_0: 18,
    Storage.Q4_1: 20,
    Storage.Q5_0: 22,
    Storage.Q5_1: 24,
    Storage.Q8_0: 34,
    Storage.Q4_K: 144,
    Storage.Q5_K: 176,
    Storage.Q6_K: 210,
}


@dataclass(frozen=True, slots=True)
class StoredMatrix:
    """A matrix in blocks along its rows, which may be floats of 16 bits.

    Args:
        shape: [rows, columns], before the padding that whole blocks may need.
        read: returns the blocks, [rows, bytes of a row] uint8; a file's are not in memory before.
    """

    type: Storage
    shape: tuple[int, ...]
    read: Callable[[], NDArray[np.uint8]]

    @property
    def blocks(self) -> NDArray[np.uint8]:
        return self.read()

    def rows(self, start: int, count: int) -> "StoredMatrix":
        shape = (count, self.shape[1])
        return StoredMatrix(self.type, shape, lambda: self.read()[start : start + count])


Matrix = AnyArray | StoredMatrix


def stored(matrix: Matrix) -> StoredMatrix:
    """Returns a matrix of floats as blocks of one, without a copy; others as they are."""
    if isinstance(matrix, StoredMatrix):
        return matrix
    kind = next(kind for kind, dtype in _FLOATS.items() if dtype == matrix.dtype)
    return StoredMatrix(kind, matrix.shape, lambda: np.ascontiguousarray(matrix).view(np.uint8))


def quantise(matrix: AnyArray, storage: Storage, *, num_threads: int = 1) -> StoredMatrix:
    """Makes blocks of floats: Q8_0, symmetric by the largest value, or Q4_1, by least squares."""
    rows, columns = matrix.shape
    row_bytes = -(-columns // GROUP) * storage.block_bytes
    blocks = pages.empty((rows, row_bytes), np.dtype(np.uint8))
    step = -(-rows // num_threads)

    def fill(first: int) -> None:  # the library runs without the interpreter's lock
        values = to_float32(matrix[first : first + step])
        part = np.ascontiguousarray(np.pad(values, ((0, 0), (0, -columns % GROUP))))
        count, into = part.size // GROUP, blocks[first : first + step]
        if library().sb_quantise(storage, part.ctypes.data, count, into.ctypes.data):
            raise ValueError(f"floats can be made Q8_0 and Q4_1, not {storage.name}")

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(fill, range(0, rows, step)))
    return StoredMatrix(storage, (rows, columns), lambda: blocks)

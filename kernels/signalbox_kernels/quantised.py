"""Matrices in quantised blocks, as in GGUF files, and the conversion of floats to such blocks.

A block is a run of values along a row: 32 of them, or 256 for the K types. Native programs compute
with the types of `is_native` without converting a matrix to floats.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels import pages
from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.native import library
from signalbox_kernels.structs import Format

GROUP = 32
"""Values that share a scale, along the sum, on both sides of a product."""


class BlockType(IntEnum):
    """Types of blocks, with ggml's numbers."""

    Q4_0 = 2
    Q4_1 = 3
    Q5_0 = 6
    Q5_1 = 7
    Q8_0 = 8
    Q4_K = 12
    Q5_K = 13
    Q6_K = 14

    @property
    def block_size(self) -> int:
        return 256 if self >= BlockType.Q4_K else GROUP

    @property
    def block_bytes(self) -> int:
        return _BLOCK_BYTES[self]

    @property
    def format(self) -> Format:
        """Format of a packed matrix of this type."""
        return Format(library().sb_format_of(self))


_BLOCK_BYTES = {
    BlockType.Q4_0: 18,
    BlockType.Q4_1: 20,
    BlockType.Q5_0: 22,
    BlockType.Q5_1: 24,
    BlockType.Q8_0: 34,
    BlockType.Q4_K: 144,
    BlockType.Q5_K: 176,
    BlockType.Q6_K: 210,
}


@dataclass(frozen=True, slots=True)
class Quantised:
    """A matrix in blocks along its rows.

    Args:
        shape: [rows, columns], before the padding that whole blocks may need.
        read: returns the blocks, [rows, bytes of a row] uint8; a file's are not in memory before.
    """

    type: BlockType
    shape: tuple[int, ...]
    read: Callable[[], NDArray[np.uint8]]

    @property
    def blocks(self) -> NDArray[np.uint8]:
        return self.read()

    def rows(self, start: int, count: int) -> "Quantised":
        shape = (count, self.shape[1])
        return Quantised(self.type, shape, lambda: self.read()[start : start + count])


Matrix = AnyArray | Quantised


def quantise(matrix: AnyArray, block_type: BlockType, *, num_threads: int = 1) -> Quantised:
    """Makes blocks of floats: Q8_0, symmetric by the largest value, or Q4_1, by least squares."""
    rows, columns = matrix.shape
    row_bytes = -(-columns // GROUP) * block_type.block_bytes
    blocks = pages.empty((rows, row_bytes), np.dtype(np.uint8))
    step = -(-rows // num_threads)

    def fill(first: int) -> None:  # the library runs without the interpreter's lock
        values = to_float32(matrix[first : first + step])
        part = np.ascontiguousarray(np.pad(values, ((0, 0), (0, -columns % GROUP))))
        count, into = part.size // GROUP, blocks[first : first + step]
        if library().sb_quantise(block_type, part.ctypes.data, count, into.ctypes.data):
            raise ValueError(f"floats can be made Q8_0 and Q4_1, not {block_type.name}")

    with ThreadPoolExecutor(num_threads) as pool:
        list(pool.map(fill, range(0, rows, step)))
    return Quantised(block_type, (rows, columns), lambda: blocks)

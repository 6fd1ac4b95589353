"""Matrices in quantised blocks, as GGUF files hold them, and how floats become such blocks.

A block is a run of values along a row: 32 of them, or 256 for the K types. Native programs run the
types that `is_native` names without ever making floats of a matrix.
"""

from dataclasses import dataclass
from enum import IntEnum

import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels.native import Format, library

GROUP = 32
"""Values that share a scale, along the sum, on both sides of a product."""


class BlockType(IntEnum):
    """ggml's numbers."""

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
        """What a packed matrix of this type is made of."""
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
    """A matrix of [rows, columns] in blocks along its rows.

    Args:
        columns: before the padding that whole blocks may need.
        blocks: [rows, bytes of a row] uint8.
    """

    type: BlockType
    columns: int
    blocks: Tensor

    @property
    def shape(self) -> torch.Size:
        return torch.Size((self.blocks.shape[0], self.columns))

    def dim(self) -> int:
        return 2

    def rows(self, start: int, count: int) -> "Quantised":
        return Quantised(self.type, self.columns, self.blocks.narrow(0, start, count))


Matrix = Tensor | Quantised


def quantise(matrix: Tensor, block_type: BlockType) -> Quantised:
    """Makes blocks of floats: Q8_0, symmetric by the largest value, or Q4_1, by least squares."""
    rows, columns = matrix.shape
    values = F.pad(matrix.float(), (0, -columns % GROUP)).contiguous()
    row_bytes = values.shape[1] // GROUP * block_type.block_bytes
    blocks = torch.empty(rows, row_bytes, dtype=torch.uint8)
    count = values.numel() // GROUP
    if library().sb_quantise(block_type, values.data_ptr(), count, blocks.data_ptr()):
        raise ValueError(f"floats can be made Q8_0 and Q4_1, not {block_type.name}")
    return Quantised(block_type, columns, blocks)

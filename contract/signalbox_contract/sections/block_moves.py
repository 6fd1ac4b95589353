"""The section of a step that copies blocks within a pool, or from one pool to the other."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.columns import check_length, pack_int32, unpack_int32
from signalbox_protos.common.v1 import common_pb2 as pb


class BlockMapping(NamedTuple):
    """Copy block src[i] to block dst[i]; both [num_copies] int32."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]

    @classmethod
    def of(cls, copies: Sequence[tuple[int, int]]) -> Self:
        """Returns the mapping of pairs of blocks."""
        return cls(*np.array(copies, dtype=np.int32).reshape(-1, 2).T.copy())


_NO_COPIES = BlockMapping.of([])


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockMoves:
    """Copies that are made before a step computes, in this order."""

    swap_out: BlockMapping = _NO_COPIES
    """Blocks copied from the GPU pool to the CPU pool."""
    swap_in: BlockMapping = _NO_COPIES
    """Blocks copied from the CPU pool to the GPU pool."""
    copy: BlockMapping = _NO_COPIES
    """Blocks copied within the GPU pool."""

    @property
    def num_swapped(self) -> int:
        """Number of blocks that are copied from one pool to the other."""
        return len(self.swap_out.src) + len(self.swap_in.src)

    @property
    def counts(self) -> dict[str, int]:
        """Number of the blocks that are moved, under the names of statistics and spans."""
        return {
            "blocks_swapped_out": len(self.swap_out.src),
            "blocks_swapped_in": len(self.swap_in.src),
            "blocks_copied": len(self.copy.src),
        }


NO_MOVES = BlockMoves()


def encode_block_moves(moves: BlockMoves) -> pb.BlockMoves:
    message = pb.BlockMoves()
    for field, mapping in (
        (message.swap_out, moves.swap_out),
        (message.swap_in, moves.swap_in),
        (message.copy, moves.copy),
    ):
        if len(mapping.src):
            field.src, field.dst = pack_int32(mapping.src), pack_int32(mapping.dst)
    return message


def decode_block_moves(message: pb.BlockMoves) -> BlockMoves:
    """Raises InvalidArgument if the columns of a mapping differ in length."""
    return BlockMoves(
        swap_out=_decode_mapping(message.swap_out, field="block_moves.swap_out"),
        swap_in=_decode_mapping(message.swap_in, field="block_moves.swap_in"),
        copy=_decode_mapping(message.copy, field="block_moves.copy"),
    )


def _decode_mapping(message: pb.BlockMapping, *, field: str) -> BlockMapping:
    if not message.src and not message.dst:
        return _NO_COPIES
    src, dst = unpack_int32(message.src, f"{field}.src"), unpack_int32(message.dst, f"{field}.dst")
    check_length(f"{field}.dst", len(dst), len(src))
    return BlockMapping(src, dst)

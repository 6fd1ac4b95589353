"""The section of a step that copies blocks within a pool, or from one pool to the other."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from contract.columns import check_lengths, pack_int32, unpack_int32
from protos.worker.v1 import worker_pb2 as pb


class BlockMapping(NamedTuple):
    """Copy block src[i] to block dst[i]; both [num_copies] int32."""

    src: NDArray[np.int32]
    dst: NDArray[np.int32]


NO_COPIES = BlockMapping(np.empty(0, dtype=np.int32), np.empty(0, dtype=np.int32))


def encode_mapping(mapping: BlockMapping) -> pb.BlockMapping:
    return pb.BlockMapping(src=pack_int32(mapping.src), dst=pack_int32(mapping.dst))


def decode_mapping(message: pb.BlockMapping, *, field: str) -> BlockMapping:
    """Raises InvalidArgument, which names `field`, if the columns differ in length."""
    if not message.src and not message.dst:
        return NO_COPIES
    src, dst = unpack_int32(message.src), unpack_int32(message.dst)
    check_lengths(field, len(src), len(dst))
    return BlockMapping(src, dst)

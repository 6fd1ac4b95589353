"""The section of a step that moves blocks between the CPU pool and a store, beside the steps.

The blocks of a move are its own until the result of a later step says that it has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from contract.columns import check_length, int32_list, int64_list, pack_int32, pack_int64
from contract.errors import InvalidArgument
from protos.worker.v1 import worker_pb2 as pb

HASH_BYTES = 16
"""Length of the hash that names what a block holds."""

MAX_FAULT_CHARS = 500
"""Longest reason for which a move failed; operators read it."""


class Find(NamedTuple):
    """Ask how many of the first `hashes` the store has."""

    move_id: int
    hashes: Sequence[bytes]


class Fetch(NamedTuple):
    """Copy the block of each hash from the store to a block of the CPU pool."""

    move_id: int
    hashes: Sequence[bytes]
    cpu_blocks: Sequence[int]


class Store(NamedTuple):
    """Copy blocks of the CPU pool to the store, each under its hash."""

    move_id: int
    hashes: Sequence[bytes]
    cpu_blocks: Sequence[int]
    tenant: str
    """Whose share of the store the blocks count against."""


class Clear(NamedTuple):
    """Remove the blocks of a tenant from the store; None is all of them."""

    move_id: int
    tenant: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMoves:
    """Moves that a step begins or calls off; see worker.proto."""

    cancels: Sequence[int] = ()
    """Moves to be called off; one that has ended already is none of them."""
    clears: Sequence[Clear] = ()
    finds: Sequence[Find] = ()
    fetches: Sequence[Fetch] = ()
    stores: Sequence[Store] = ()

    @property
    def move_ids(self) -> list[int]:
        """Numbers of the moves that begin."""
        ids = [one.move_id for one in self.clears] + [one.move_id for one in self.finds]
        ids += [one.move_id for one in self.fetches]
        return ids + [one.move_id for one in self.stores]

    @property
    def counts(self) -> dict[str, int]:
        """Number of the blocks that are moved, under the names of statistics and spans."""
        return {
            "blocks_fetched": sum(len(fetch.hashes) for fetch in self.fetches),
            "blocks_stored": sum(len(store.hashes) for store in self.stores),
        }


class MoveResult(NamedTuple):
    """A move that has ended: none of its blocks is read or written any more."""

    move_id: int
    num_blocks: int
    """Blocks, from the first one on, that a find found, a fetch brought or a store kept."""
    num_bytes: int = 0
    """Bytes of the blocks that were read or written."""
    duration_ns: int = 0
    """Nanoseconds from the first call to the store to the end; 0 if there was none."""
    failed: str = ""
    """Why a move ended before its time; a block that is not there, or not kept, is no failure."""


def encode_store_moves(moves: StoreMoves) -> pb.StoreMoves:
    return pb.StoreMoves(
        cancelled_move_ids=pack_int64(moves.cancels),
        clears=[pb.ClearStore(move_id=one.move_id, tenant=one.tenant) for one in moves.clears],
        finds=[
            pb.FindBlocks(move_id=one.move_id, hashes=b"".join(one.hashes)) for one in moves.finds
        ],
        fetches=[
            pb.FetchBlocks(
                move_id=one.move_id,
                hashes=b"".join(one.hashes),
                cpu_blocks=pack_int32(one.cpu_blocks),
            )
            for one in moves.fetches
        ],
        stores=[
            pb.StoreBlocks(
                move_id=one.move_id,
                hashes=b"".join(one.hashes),
                cpu_blocks=pack_int32(one.cpu_blocks),
                tenant=one.tenant,
            )
            for one in moves.stores
        ],
    )


def decode_store_moves(message: pb.StoreMoves) -> StoreMoves:
    """Raises InvalidArgument if a hash is cut off, or if blocks and hashes differ in number."""
    return StoreMoves(
        cancels=int64_list(message.cancelled_move_ids, "store_moves.cancelled_move_ids"),
        clears=[
            Clear(one.move_id, one.tenant if one.HasField("tenant") else None)
            for one in message.clears
        ],
        finds=[
            Find(one.move_id, _hashes(one.hashes, "store_moves.finds.hashes"))
            for one in message.finds
        ],
        fetches=[Fetch(one.move_id, *_blocks(one, "fetches")) for one in message.fetches],
        stores=[Store(one.move_id, *_blocks(one, "stores"), one.tenant) for one in message.stores],
    )


def _blocks(message: pb.FetchBlocks | pb.StoreBlocks, name: str) -> tuple[list[bytes], list[int]]:
    hashes = _hashes(message.hashes, f"store_moves.{name}.hashes")
    cpu_blocks = int32_list(message.cpu_blocks, f"store_moves.{name}.cpu_blocks")
    check_length(f"store_moves.{name}.cpu_blocks", len(cpu_blocks), len(hashes))
    return hashes, cpu_blocks


def _hashes(data: bytes, field: str) -> list[bytes]:
    if len(data) % HASH_BYTES:
        raise InvalidArgument(field, f"{len(data)} bytes", f"a multiple of {HASH_BYTES} bytes")
    return [data[start : start + HASH_BYTES] for start in range(0, len(data), HASH_BYTES)]


def encode_move_result(result: MoveResult) -> pb.MoveResult:
    return pb.MoveResult(**result._asdict())


def decode_move_result(message: pb.MoveResult) -> MoveResult:
    return MoveResult(
        message.move_id,
        message.num_blocks,
        message.num_bytes,
        message.duration_ns,
        message.failed,
    )

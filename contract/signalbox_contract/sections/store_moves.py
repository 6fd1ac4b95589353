"""The section of a step that moves blocks between the CPU pool and a store or another worker.

The moves go on beside the steps. The blocks of a move are its own until the result of a later step
says that it has ended.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from signalbox_contract.columns import check_length, int32_list, int64_list, pack_int32, pack_int64
from signalbox_contract.errors import InvalidArgument
from signalbox_protos.common.v1 import common_pb2 as common_pb
from signalbox_protos.worker.v1 import worker_pb2 as pb

HASH_BYTES = 16
"""Length of the hash that names what a block holds."""
_ISSUER_BYTES = 16
"""Length of what tells the clears of one scheduler from those of another."""
_TICKET_BYTES = 16
"""Length of what a worker shows that reads the blocks of another."""

MAX_FAULT_CHARS = 500
"""Longest reason for which a move failed; operators read it."""


class Find(NamedTuple):
    """Ask how many of the first `hashes` the store has."""

    move_id: int
    hashes: Sequence[bytes]
    seeks: bool = False
    """Ask how many of them it lacks instead; see worker.proto."""


class BlockSource(NamedTuple):
    """Another worker, which has been told to export blocks; see worker.proto."""

    address: str
    server_name: str
    ticket: bytes


class Fetch(NamedTuple):
    """Copy the block of each hash from the store, or `source`, to a block of the CPU pool."""

    move_id: int
    hashes: Sequence[bytes]
    cpu_blocks: Sequence[int]
    source: BlockSource | None = None


class Export(NamedTuple):
    """Let another worker read blocks of the CPU pool once; see worker.proto."""

    move_id: int
    hashes: Sequence[bytes]
    cpu_blocks: Sequence[int]
    ticket: bytes
    reader: str
    lasts_ns: int


class Store(NamedTuple):
    """Copy blocks of the CPU pool to the store, each under its hash."""

    move_id: int
    hashes: Sequence[bytes]
    cpu_blocks: Sequence[int]
    tenant: str
    """Tenant whose share of the store the blocks count against."""


class ClearMark(NamedTuple):
    """Names a clear that a scheduler was asked for; numbers of an issuer count up from 1."""

    issuer: bytes
    number: int
    catches_up: bool = False
    """All clears of the issuer up to this one, whose tenants are not known any more."""


class Clear(NamedTuple):
    """Remove the blocks of a tenant from the store; None is all of them."""

    move_id: int
    tenant: str | None
    mark: ClearMark | None = None
    """Files that have made this clear are left as they are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreMoves:
    """Moves that a step begins or calls off; see worker.proto."""

    cancels: Sequence[int] = ()
    """Moves to be called off; one that has ended already is none of them."""
    clears: Sequence[Clear] = ()
    finds: Sequence[Find] = ()
    fetches: Sequence[Fetch] = ()
    stores: Sequence[Store] = ()
    exports: Sequence[Export] = ()

    @property
    def move_ids(self) -> list[int]:
        """Numbers of the moves that begin."""
        ids = [one.move_id for one in self.clears] + [one.move_id for one in self.finds]
        ids += [one.move_id for one in self.fetches]
        ids += [one.move_id for one in self.stores]
        return ids + [one.move_id for one in self.exports]

    @property
    def of_store(self) -> "StoreMoves":
        """The moves to and from the worker's store, and what is called off."""
        return replace(self, exports=(), fetches=[one for one in self.fetches if not one.source])

    @property
    def needs_store(self) -> bool:
        """True if a move is to or from the worker's store."""
        return bool(self.of_store.move_ids)

    @property
    def needs_peers(self) -> bool:
        """True if a move is to or from another worker."""
        return bool(self.exports) or any(one.source is not None for one in self.fetches)

    @property
    def counts(self) -> dict[str, int]:
        """Number of the blocks that are moved, under the names of statistics and spans."""
        return {
            "blocks_fetched": sum(len(fetch.hashes) for fetch in self.fetches),
            "blocks_stored": sum(len(store.hashes) for store in self.stores),
            "blocks_exported": sum(len(export.hashes) for export in self.exports),
        }


class MoveResult(NamedTuple):
    """A move that has ended: none of its blocks is read or written any more."""

    move_id: int
    num_blocks: int
    """Blocks, from the first one on, that were found, fetched, stored, or read by a peer, or that
    are not there if one was sought."""
    num_bytes: int = 0
    """Bytes of the blocks that were read or written."""
    duration_ns: int = 0
    """Nanoseconds from the first call to the store to the end; 0 if there was none."""
    failed: str = ""
    """Reason why a move ended early; a block that is not there, or not kept, is no failure."""


def encode_store_moves(moves: StoreMoves) -> pb.StoreMoves:
    return pb.StoreMoves(
        cancelled_move_ids=pack_int64(moves.cancels),
        clears=[
            pb.ClearStore(
                move_id=one.move_id,
                tenant=one.tenant,
                mark=None if one.mark is None else encode_mark(one.mark),
            )
            for one in moves.clears
        ],
        finds=[
            pb.FindBlocks(move_id=one.move_id, hashes=b"".join(one.hashes), seeks=one.seeks)
            for one in moves.finds
        ],
        fetches=[
            pb.FetchBlocks(
                move_id=one.move_id,
                hashes=b"".join(one.hashes),
                cpu_blocks=pack_int32(one.cpu_blocks),
                source=None if one.source is None else pb.BlockSource(**one.source._asdict()),
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
        exports=[_encode_export(one) for one in moves.exports],
    )


def _encode_export(export: Export) -> pb.ExportBlocks:
    return pb.ExportBlocks(
        move_id=export.move_id,
        hashes=b"".join(export.hashes),
        cpu_blocks=pack_int32(export.cpu_blocks),
        ticket=export.ticket,
        reader=export.reader,
        lasts_ns=export.lasts_ns,
    )


def decode_store_moves(message: pb.StoreMoves) -> StoreMoves:
    """Raises InvalidArgument if a hash or ticket is cut off, or if there are not as many blocks."""
    return StoreMoves(
        cancels=int64_list(message.cancelled_move_ids, "store_moves.cancelled_move_ids"),
        clears=[
            Clear(
                one.move_id,
                one.tenant if one.HasField("tenant") else None,
                decode_mark(one.mark, "store_moves.clears.mark") if one.HasField("mark") else None,
            )
            for one in message.clears
        ],
        finds=[
            Find(one.move_id, _hashes(one.hashes, "store_moves.finds.hashes"), one.seeks)
            for one in message.finds
        ],
        fetches=[
            Fetch(one.move_id, *_blocks(one, "fetches"), _source(one)) for one in message.fetches
        ],
        stores=[Store(one.move_id, *_blocks(one, "stores"), one.tenant) for one in message.stores],
        exports=[_export(one) for one in message.exports],
    )


def encode_mark(mark: ClearMark) -> common_pb.ClearMark:
    return common_pb.ClearMark(**mark._asdict())


def decode_mark(message: common_pb.ClearMark, field: str) -> ClearMark:
    """Raises InvalidArgument if it names no scheduler."""
    if len(message.issuer) != _ISSUER_BYTES:
        raise InvalidArgument(
            f"{field}.issuer", f"{len(message.issuer)} bytes", f"{_ISSUER_BYTES} bytes"
        )
    return ClearMark(message.issuer, message.number, message.catches_up)


def _source(message: pb.FetchBlocks) -> BlockSource | None:
    if not message.HasField("source"):
        return None
    source = message.source
    ticket = _check_ticket(source.ticket, "store_moves.fetches.source.ticket")
    return BlockSource(source.address, source.server_name, ticket)


def _export(message: pb.ExportBlocks) -> Export:
    hashes, cpu_blocks = _blocks(message, "exports")
    ticket = _check_ticket(message.ticket, "store_moves.exports.ticket")
    if not message.lasts_ns:
        raise InvalidArgument("store_moves.exports.lasts_ns", 0, "at least 1")
    return Export(message.move_id, hashes, cpu_blocks, ticket, message.reader, message.lasts_ns)


def _check_ticket(ticket: bytes, field: str) -> bytes:
    """Returns the ticket. Raises InvalidArgument if it has another length."""
    if len(ticket) != _TICKET_BYTES:
        raise InvalidArgument(field, f"{len(ticket)} bytes", f"{_TICKET_BYTES} bytes")
    return ticket


def _blocks(
    message: pb.FetchBlocks | pb.StoreBlocks | pb.ExportBlocks, name: str
) -> tuple[list[bytes], list[int]]:
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

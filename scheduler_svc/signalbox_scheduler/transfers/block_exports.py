"""Blocks that a worker of the cluster exports to others, which fetch them instead of computing.

What goes from one worker to another is an export, which is a transfer of its owner's pool, and a
fetch, which is a transfer of its reader's; the end of either ends the other."""

import hashlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from signalbox_contract.sections.store_moves import BlockSource, MoveResult
from signalbox_scheduler.config import PeerIdentity
from signalbox_scheduler.kv.block_allocator import BlockHash, HoldKind
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.cost_model import CostModel
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.planning.steps_in_flight import StepsInFlight
from signalbox_scheduler.transfers.pending_transfers import PendingTransfers, Transfer, TransferKind

EXPORT_S = 10.0
"""Time for which blocks are exported at most, on the clock of the worker that has them."""
MAX_EXPORTED_SHARE = 0.25
"""Most of a CPU pool that may be exported at a time."""
MAX_PLANS_AHEAD = 4
"""Plans whose copies may be ahead of an export: a reader copies all of a part to the GPU in a
step."""


def most_exported(num_cpu_blocks: int) -> int:
    """Returns how many blocks of a CPU pool may be exported at a time; 0 if it is too small."""
    return int(MAX_EXPORTED_SHARE * num_cpu_blocks)


@dataclass(slots=True, eq=False, kw_only=True)
class TransferEndpoint:
    """Properties of a worker that the other end of a transfer has to know."""

    identity: PeerIdentity
    inflight: StepsInFlight
    """Steps that the worker computes before the one that exports what is wanted now."""
    cost: CostModel
    transfers: PendingTransfers
    wake: Callable[[], None]
    """Makes the worker's driver plan."""
    is_avoided: bool = False
    """True if no worker reads its blocks any more, since audits found them wrong."""

    def can_read(self, other: "TransferEndpoint") -> bool:
        """Says whether the other end is another worker, with blocks that this one can use."""
        is_another = other is not self and not other.is_avoided
        return is_another and self.identity.has_format_of(other.identity)


@dataclass(slots=True, eq=False, kw_only=True)
class PeerFetch:
    """Blocks on their way from one worker to another."""

    owner: "BlockExports"
    reader: TransferEndpoint
    source: BlockSource
    fetch: Transfer
    ahead: Hold
    """Blocks of the owner's CPU pool with copies of what comes after the export, for the next."""
    private: Mapping[BlockHash, int]
    """GPU blocks of the owner that nothing finds, by names of what they hold."""
    is_urgent: bool = True
    """False if steps of the owner are to copy little for it."""
    export: Transfer | None = None
    """None until the owner's next plan."""
    is_read: bool = True
    """False once the fetch has ended, so that the export is about to end, too."""

    @property
    def goes_on(self) -> bool:
        """True if the blocks are being read, and neither move was called off."""
        transfers = (self.fetch, self.export)
        return self.is_read and all(one is None or one.cancelled_at is None for one in transfers)

    def call_off(self, now: float) -> None:
        """Ends the fetch, for which nothing is exported; a no-op if it has ended."""
        if self.is_read:
            self.reader.transfers.cancel(self.fetch, now)
            self.reader.wake()


class BlockExports:
    """The exports of one worker, and what the next of them are for."""

    def __init__(self, endpoint: TransferEndpoint, *, blocks: BlockSpaceManager) -> None:
        self.endpoint = endpoint
        self.num_bytes = 0
        """Bytes that others have read."""
        self._blocks = blocks
        self._transfers = endpoint.transfers
        self._num_tickets = 0
        self._wanted: dict[PeerFetch, None] = {}
        """Fetches for which the next plan exports."""
        self._exports: dict[Transfer, PeerFetch] = {}

    @property
    def is_exporting(self) -> bool:
        """True if other workers read of this one, or are about to."""
        return bool(self._wanted or self._exports)

    @property
    def num_exportable(self) -> int:
        """Blocks that the next plan may export beside those that are wanted already."""
        num_wanted = sum(sum(pair.fetch.sizes) for pair in self._wanted)
        return max(0, self._num_spare - num_wanted)

    @property
    def _num_spare(self) -> int:
        num_exported = sum(
            sum(transfer.sizes) for transfer, one in self._exports.items() if one.is_read
        )
        return max(0, most_exported(self._blocks.cpu.num_blocks) - num_exported)

    def has(self, block_hash: BlockHash) -> bool:
        """Says whether either pool has a block."""
        pools = self._blocks.cpu, self._blocks.gpu
        return any(pool.find(block_hash) is not None for pool in pools)

    def make_source(self, reader: PeerIdentity) -> BlockSource:
        """Returns what a reader shows. It takes both epochs, which only the scheduler has."""
        self._num_tickets += 1
        owner = self.endpoint.identity
        parts = owner.epoch, reader.epoch, self._num_tickets
        told = b"".join(part.to_bytes(8, "little") for part in parts)
        ticket = hashlib.blake2b(told, digest_size=16, person=b"ticket").digest()
        return BlockSource(owner.address, owner.certified_name, ticket)

    def want(self, pair: PeerFetch) -> None:
        """Has the next plan export what a fetch asks for."""
        self._wanted[pair] = None
        self.endpoint.wake()

    def plan(self, now: float) -> None:
        """Exports what is wanted, as far as it is still here."""
        self._transfers.cancel_older(TransferKind.EXPORT, began_before=now - 2 * EXPORT_S, now=now)
        wanted, self._wanted = self._wanted, {}
        for pair in self._exports.values() if wanted else ():
            pair.ahead.release()  # what is wanted now comes first
        for pair in wanted:
            if not self._num_spare:
                self._wanted[pair] = None  # until what is exported has been read
                continue
            hold = self._take_copies(pair, pair.fetch.hashes)
            if not hold.blocks:
                pair.call_off(now)
                continue
            pair.export = self._transfers.export(
                pair.fetch.hashes[: len(hold.blocks)],
                hold,
                ticket=pair.source.ticket,
                reader=pair.reader.identity.certified_name,
                lasts_s=EXPORT_S,
                now=now,
            )
            self._exports[pair.export] = pair
        if not wanted and len(self._exports) == 1:  # else plans copy for the others
            ((export, pair),) = self._exports.items()
            self._copy_ahead(pair, num_exported=len(export.hashes))

    def _copy_ahead(self, pair: PeerFetch, *, num_exported: int) -> None:
        """Copies what the reader will ask for next, while it reads the first of its blocks.

        It comes in fewer and longer parts so, as each part has to wait for steps of both workers.
        """
        num_ahead = len(pair.ahead.blocks)
        rest = pair.fetch.hashes[num_exported + num_ahead : num_exported + self._num_spare]
        if pair.goes_on and self._keeps_more(pair, num_ahead // MAX_PLANS_AHEAD):
            public = list(itertools.takewhile(lambda one: one not in pair.private, rest))
            pair.ahead.absorb(self._take_copies(pair, public))

    def _take_copies(self, pair: PeerFetch, hashes: Sequence[BlockHash]) -> Hold:
        """Takes blocks of the CPU pool with the first of some blocks that are here; a state, which
        may be more than is to be exported at a time, whole."""
        hold, copies = Hold(self._blocks.cpu, kind=HoldKind.EXPORT), self._blocks.copies
        num_before, num_spare = copies.num_out, self._num_spare
        for block_hash in hashes:
            is_full = self._blocks.cpu.num_blocks_of(hold.blocks) >= num_spare
            if is_full or not self._keeps_more(pair, copies.num_out - num_before):
                break
            if block_hash in pair.private:
                is_copied = copies.copy_out(pair.private[block_hash], hold)
            else:
                is_copied = copies.store_copy(block_hash, hold)
            if not is_copied:
                break
        return hold

    def _keeps_more(self, pair: PeerFetch, num_copies: int) -> bool:
        """Says whether a plan that copies so many blocks for a reader should copy another."""
        cost = self.endpoint.cost
        step_s = max(cost.last_decode_s, pair.reader.cost.last_decode_s)
        return cost.keeps_more_copies(
            num_copies=num_copies, step_s=step_s, is_urgent=pair.is_urgent
        )

    def make_hold(self) -> Hold:
        """Returns a hold of the pool from which blocks are exported."""
        return Hold(self._blocks.cpu, kind=HoldKind.EXPORT)

    def ended(self, transfer: Transfer, result: MoveResult) -> None:
        """Takes the end of an export, and of its ownership of the blocks."""
        self.num_bytes += result.num_bytes
        self._exports.pop(transfer).ahead.release()
        transfer.hold.release()
        if self._wanted:
            self.endpoint.wake()

    def give_up(self, pair: PeerFetch, now: float) -> None:
        """Ends an export that is read no more; a no-op if it has ended."""
        self._wanted.pop(pair, None)
        if pair.export in self._exports:
            pair.ahead.release()
            self._transfers.cancel(pair.export, now)
            self.endpoint.wake()

    def take_back(self, block_hash: BlockHash, now: float) -> None:
        """Ends the exports of a block that went wrong here."""
        for pair in [*self._wanted, *self._exports.values()]:
            if block_hash in pair.fetch.hashes:
                self.give_up(pair, now)

    def leave(self, now: float) -> None:
        """Ends what others wait for: the worker is gone."""
        for pair in [*self._wanted, *self._exports.values()]:
            pair.call_off(now)
        self._wanted.clear()
        self._exports.clear()

    def check(self) -> None:
        """Asserts that exported blocks hold what is said of them, unless voided meanwhile."""
        for transfer, pair in self._exports.items():
            for block, block_hash in zip(transfer.hold.blocks, transfer.hashes, strict=True):
                known = self._blocks.cpu.hashes.get(block)
                is_private = known is None and block_hash in pair.private
                is_exported = known == block_hash or is_private or transfer.cancelled_at is not None
                assert is_exported, f"{block} is not what is exported"

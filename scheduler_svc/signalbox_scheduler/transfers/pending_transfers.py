"""Transfers between a worker's CPU pool and a store or a peer: those to be sent, and those under
way.

A transfer owns its blocks of the CPU pool from its beginning until the worker has said that it has
ended, whatever happens meanwhile to the requests that it is for: a transfer that is called off
ends, too. So nothing else is put where the worker may still write."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto

from signalbox_contract.sections.store_moves import (
    BlockSource,
    Clear,
    ClearMark,
    Export,
    Fetch,
    Find,
    MoveResult,
    Store,
    StoreMoves,
)
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockHash, HoldKind
from signalbox_scheduler.kv.hold import Hold

MAX_CANCEL_S = 10.0
"""Longest that a transfer that is called off may take to end; its worker counts as lost then."""


class TransferKind(Enum):
    """Kind of a transfer; the first two own no blocks."""

    FIND = auto()
    CLEAR = auto()
    FETCH = auto()
    STORE = auto()
    EXPORT = auto()


@dataclass(slots=True, eq=False, kw_only=True)
class Transfer:
    """A transfer that has not ended."""

    move_id: int
    kind: TransferKind
    hashes: Sequence[BlockHash] = ()
    hold: Hold
    """A block of the CPU pool for each hash; none if it copies nothing."""
    began_at: float
    """Seconds of the scheduler's clock."""
    source: str = ""
    """Address of the worker from which a fetch brings them; empty of the store."""
    cancelled_at: float | None = None
    is_void: bool = False
    """True if what it brings, or has found, does not count: the cache was reset meanwhile."""


@dataclass(slots=True, kw_only=True)
class _Outbox:
    """Transfers that the next plan begins or calls off."""

    cancels: list[int] = field(default_factory=list)
    clears: list[Clear] = field(default_factory=list)
    finds: list[Find] = field(default_factory=list)
    fetches: list[Fetch] = field(default_factory=list)
    stores: list[Store] = field(default_factory=list)
    exports: list[Export] = field(default_factory=list)


class PendingTransfers:
    """The transfers of one worker, by number.

    Args:
        pool: the CPU pool.
    """

    def __init__(self, pool: BlockAllocator) -> None:
        self._pool = pool
        self._transfers: dict[int, Transfer] = {}
        self._num_begun = 0
        self._outbox: _Outbox | None = None

    def __len__(self) -> int:
        return len(self._transfers)

    def find(self, hashes: Sequence[BlockHash], now: float) -> Transfer:
        """Asks how many of the first hashes the store has."""
        transfer = self._begin(TransferKind.FIND, now, hashes)
        self._to_send.finds.append(Find(transfer.move_id, hashes))
        return transfer

    def fetch(
        self, hashes: Sequence[BlockHash], now: float, *, source: BlockSource | None = None
    ) -> Transfer:
        """Brings blocks into the CPU pool; ask its `num_free` first.

        Args:
            source: where they come from instead of the store.
        """
        hold = Hold(self._pool, kind=HoldKind.FETCH)
        blocks = hold.take(len(hashes))
        transfer = self._begin(TransferKind.FETCH, now, hashes, hold)
        transfer.source = source.address if source is not None else ""
        self._to_send.fetches.append(Fetch(transfer.move_id, hashes, blocks, source))
        return transfer

    def store(
        self, hashes: Sequence[BlockHash], hold: Hold, *, tenant: str, now: float
    ) -> Transfer:
        """Writes blocks of the CPU pool; the hold is the transfer's now."""
        transfer = self._begin(TransferKind.STORE, now, hashes, hold)
        self._to_send.stores.append(Store(transfer.move_id, hashes, hold.blocks.copy(), tenant))
        return transfer

    def export(
        self,
        hashes: Sequence[BlockHash],
        hold: Hold,
        *,
        ticket: bytes,
        reader: str,
        lasts_s: float,
        now: float,
    ) -> Transfer:
        """Lets another worker read blocks of the CPU pool; the hold is the transfer's now."""
        transfer = self._begin(TransferKind.EXPORT, now, hashes, hold)
        blocks, lasts_ns = hold.blocks.copy(), int(lasts_s * 1e9)
        self._to_send.exports.append(
            Export(transfer.move_id, hashes, blocks, ticket, reader, lasts_ns)
        )
        return transfer

    def clear(self, tenant: str | None, now: float, mark: ClearMark | None = None) -> Transfer:
        """Removes a tenant's blocks from the store, or all, and voids what is under way."""
        self.void(now)
        transfer = self._begin(TransferKind.CLEAR, now)
        self._to_send.clears.append(Clear(transfer.move_id, tenant, mark))
        return transfer

    def void(self, now: float) -> None:
        """Lets what is under way come to nothing; its blocks are free when it has ended."""
        for transfer in self._transfers.values():
            transfer.is_void = True
            transfer.hold.retract()
            if transfer.kind is not TransferKind.CLEAR:
                self.cancel(transfer, now)

    def cancel(self, transfer: Transfer, now: float) -> None:
        """Calls a transfer off; a no-op if that was done, or if it has ended."""
        if transfer.cancelled_at is None and transfer.move_id in self._transfers:
            transfer.cancelled_at = now
            self._to_send.cancels.append(transfer.move_id)

    def cancel_older(self, kind: TransferKind, *, began_before: float, now: float) -> None:
        """Calls the transfers of a kind off that have taken too long."""
        for transfer in self._transfers.values():
            if transfer.kind is kind and transfer.began_at < began_before:
                self.cancel(transfer, now)

    def end(self, result: MoveResult) -> Transfer | None:
        """Takes the end of a transfer; the caller releases its blocks.

        Returns None for a number that is not under way.
        """
        return self._transfers.pop(result.move_id, None)

    def pop_section(self) -> StoreMoves | None:
        """Returns what the plan in the making tells the worker, once."""
        outbox, self._outbox = self._outbox, None
        if outbox is None:
            return None
        return StoreMoves(
            cancels=outbox.cancels,
            clears=outbox.clears,
            finds=outbox.finds,
            fetches=outbox.fetches,
            stores=outbox.stores,
            exports=outbox.exports,
        )

    @property
    def overdue_at(self) -> float:
        """Time at which the worker is lost unless a transfer that was called off has ended."""
        cancelled = (transfer.cancelled_at for transfer in self._transfers.values())
        return min((at for at in cancelled if at is not None), default=math.inf) + MAX_CANCEL_S

    @property
    def is_clearing(self) -> bool:
        """True until the worker has said how a clear of its store has ended."""
        return any(transfer.kind is TransferKind.CLEAR for transfer in self._transfers.values())

    def num_blocks(self, kind: TransferKind) -> int:
        """Returns how many blocks the transfers of a kind own."""
        return sum(
            len(transfer.hold.blocks)
            for transfer in self._transfers.values()
            if transfer.kind is kind
        )

    @property
    def _to_send(self) -> _Outbox:
        if self._outbox is None:
            self._outbox = _Outbox()
        return self._outbox

    def _begin(
        self,
        kind: TransferKind,
        now: float,
        hashes: Sequence[BlockHash] = (),
        hold: Hold | None = None,
    ) -> Transfer:
        self._num_begun += 1
        transfer = Transfer(
            move_id=self._num_begun,
            kind=kind,
            hashes=hashes,
            hold=hold or Hold(self._pool),
            began_at=now,
        )
        self._transfers[transfer.move_id] = transfer
        return transfer

    def check(self) -> None:
        """Asserts that what a fetch writes has no other owner, and cannot be found."""
        owners = self._pool.num_owners()
        for transfer in self._transfers.values():
            if transfer.kind is TransferKind.FETCH:
                for block in transfer.hold.blocks:
                    assert owners[block] == 1, (
                        f"block {block} is written by transfer {transfer.move_id}"
                    )
                    assert block not in self._pool.hashes, f"block {block} is found too early"

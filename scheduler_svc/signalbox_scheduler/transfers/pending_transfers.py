"""Transfers between a worker's CPU pool and a store or a peer: those to be sent, and those under
way.

A transfer owns its blocks of the CPU pool from its beginning until the worker has said that it has
ended, whatever happens meanwhile to the requests that it is for: a transfer that is called off
ends, too. So nothing else is put where the worker may still write."""

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from itertools import accumulate

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
from signalbox_scheduler.kv.prefix_cache import names_of_parts

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
    """Names of blocks, and of states, each of which is several blocks."""
    sizes: Sequence[int] = ()
    """Blocks of each."""
    hold: Hold
    """A block of the CPU pool, or a state's first, for each hash; none if it copies nothing."""
    began_at: float
    """Seconds of the scheduler's clock."""
    source: str = ""
    """Address of the worker from which a fetch brings them; empty of the store."""
    cancelled_at: float | None = None
    is_void: bool = False
    """True if what it brings, or has found, does not count: the cache was reset meanwhile."""

    def num_whole(self, num_blocks: int) -> int:
        """Returns for how many of the names the first blocks are all that there is to move."""
        return bisect_right(list(accumulate(self.sizes)), num_blocks)

    @property
    def names(self) -> list[BlockHash]:
        """Names of all blocks, those of states one by one, as the worker has them."""
        return [
            one
            for name, size in zip(self.hashes, self.sizes, strict=True)
            for one in names_of_parts(name, size)
        ]


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

    def find(
        self,
        hashes: Sequence[BlockHash],
        now: float,
        *,
        sizes: Sequence[int] = (),
        seeks: bool = False,
    ) -> Transfer:
        """Asks how many of the first hashes the store has.

        Args:
            sizes: blocks of each; empty if none is of a state.
            seeks: whether to ask how many it lacks instead.
        """
        transfer = self._begin(TransferKind.FIND, now, hashes, sizes=sizes)
        self._to_send.finds.append(Find(transfer.move_id, transfer.names, seeks))
        return transfer

    def fetch(
        self,
        hashes: Sequence[BlockHash],
        now: float,
        *,
        sizes: Sequence[int] = (),
        source: BlockSource | None = None,
    ) -> Transfer:
        """Brings blocks into the CPU pool; ask its `num_free` first.

        Args:
            sizes: blocks of each; empty if none is of a state.
            source: where they come from instead of the store.
        """
        hold = Hold(self._pool, kind=HoldKind.FETCH)
        for size in sizes or [1] * len(hashes):
            hold.take_state(size)
        transfer = self._begin(TransferKind.FETCH, now, hashes, hold, sizes=sizes)
        transfer.source = source.address if source is not None else ""
        blocks = self._blocks_of(hold)
        self._to_send.fetches.append(Fetch(transfer.move_id, transfer.names, blocks, source))
        return transfer

    def store(
        self, hashes: Sequence[BlockHash], hold: Hold, *, tenant: str, now: float
    ) -> Transfer:
        """Writes blocks of the CPU pool; the hold is the transfer's now."""
        transfer = self._begin(TransferKind.STORE, now, hashes, hold, sizes=self._sizes_of(hold))
        blocks = self._blocks_of(hold)
        self._to_send.stores.append(Store(transfer.move_id, transfer.names, blocks, tenant))
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
        transfer = self._begin(TransferKind.EXPORT, now, hashes, hold, sizes=self._sizes_of(hold))
        blocks, lasts_ns = self._blocks_of(hold), int(lasts_s * 1e9)
        self._to_send.exports.append(
            Export(transfer.move_id, transfer.names, blocks, ticket, reader, lasts_ns)
        )
        return transfer

    def _sizes_of(self, hold: Hold) -> list[int]:
        return [self._pool.num_blocks_of([head]) for head in hold.blocks]

    def _blocks_of(self, hold: Hold) -> list[int]:
        return [block for head in hold.blocks for block in self._pool.blocks_of(head)]

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
        transfers = (one for one in self._transfers.values() if one.kind is kind)
        return sum(self._pool.num_blocks_of(transfer.hold.blocks) for transfer in transfers)

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
        *,
        sizes: Sequence[int] = (),
    ) -> Transfer:
        self._num_begun += 1
        transfer = Transfer(
            move_id=self._num_begun,
            kind=kind,
            hashes=hashes,
            sizes=sizes or [1] * len(hashes),
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

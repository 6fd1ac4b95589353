"""Transfers between a runner's CPU pool and its store or other workers.

The blocks of an export stay the scheduler's word until it has ended, and its end excludes the
copying of a block, by the transfer's lock. So whatever is read holds what the scheduler said of it,
also if the export is cancelled, or its time is over, while a block is read.
"""

import time
from collections.abc import Callable, Iterable, Iterator, Sequence

from signalbox_contract.errors import FailedPrecondition
from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import (
    ClearMark,
    Export,
    Fetch,
    MoveResult,
    Store,
    StoreMoves,
)
from signalbox_rpc.metrics.sample import Sample, gauges
from signalbox_worker.kv.cache.pools import NO_POOLS, Pools
from signalbox_worker.kv.store.block_transfers import BlockReader, BlockTransfers
from signalbox_worker.kv.store.store_threads import StoreThreads
from signalbox_worker.kv.store.transfer import ExportedBlocks, Transfer

CANCELLED = "cancelled"
STALLED = "the store does not answer"
EXPIRED = "the time of the export is over"


class PoolTransfers(BlockTransfers):
    """The transfers of all pools that a runner has, one after the other."""

    def __init__(self, store: StoreThreads, *, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self.store = store
        self._clock = clock
        self._pools: Pools = NO_POOLS
        self._reader = BlockReader()
        self._exports: dict[int, ExportedBlocks] = {}
        self._tickets: dict[bytes, ExportedBlocks] = {}
        """Exports whose ticket no reader has shown yet."""

    @property
    def store_capacity(self) -> StoreCapacity | None:
        return self.store.capacity

    def bind(self, pools: Pools) -> None:
        self.unbind()
        self._pools = pools

    def unbind(self) -> None:
        self._cancel(self._pending)
        for transfer in list(self._pending.values()):
            self._forget(transfer)
        self._reader.stop_ended()
        self._pools = NO_POOLS

    def connect(self, reader: BlockReader) -> None:
        self._reader = reader

    def check(self, moves: StoreMoves) -> None:
        if self.store_capacity is None and moves.needs_store:
            raise FailedPrecondition("this worker has no store for KV blocks, and the step uses it")
        if not self._reader.reaches_peers and moves.needs_peers:
            raise FailedPrecondition("this worker exchanges no KV blocks with others")

    def begin(self, moves: StoreMoves) -> None:
        self._cancel(moves.cancels)
        self._begin_with_store(moves)
        for export in moves.exports:
            self._export(export)
        for fetch in moves.fetches:
            if fetch.source is not None:
                self._reader.begin(self._begin_with_peer(fetch), fetch.source)
        if moves.cancels:  # some may be of transfers that have just begun
            self._cancel(moves.cancels)
            self._reader.stop_ended()

    def _begin_with_store(self, moves: StoreMoves) -> None:
        for clear in moves.clears:
            tenant = None if clear.tenant is None else clear.tenant.encode()
            self.store.clear(self._add(Transfer(clear.move_id, ())), tenant, clear.mark)
        for find in moves.finds:
            if not find.hashes:
                raise ValueError("a find names at least one key")
            transfer = self._add(Transfer(find.move_id, find.hashes))
            self.store.find(transfer, seeks=find.seeks)
        for fetch in moves.fetches:
            if fetch.source is None:
                self.store.read(self._begin(fetch))
        for one in moves.stores:
            self.store.write(self._begin(one), one.tenant.encode())

    def _begin(self, moved: Fetch | Store | Export, *, with_peer: bool = False) -> Transfer:
        opened = self.open(moved.move_id, moved.hashes, moved.cpu_blocks, with_peer=with_peer)
        return self._add(opened)

    def _begin_with_peer(self, moved: Fetch | Export) -> Transfer:
        """Begins a transfer from or to another worker; `RankedTransfers` overrides this hook."""
        return self._begin(moved, with_peer=True)

    def _export(self, export: Export) -> None:
        """Lets blocks be read, once, by what shows the ticket in time."""
        exported = ExportedBlocks(
            transfer=self._begin_with_peer(export),
            ticket=export.ticket,
            reader=export.reader,
            expires_at=self._clock() + export.lasts_ns / 1e9,
        )
        self._exports[export.move_id] = self._tickets[export.ticket] = exported

    def open(
        self,
        move_id: int,
        keys: Sequence[bytes],
        cpu_blocks: Sequence[int],
        *,
        with_peer: bool = False,
    ) -> Transfer:
        """Returns a transfer of blocks of the pool that is not one of these."""
        if not keys:
            raise ValueError("a transfer names at least one block")
        blocks = [self._pools.cpu_block(index) for _, index in zip(keys, cpu_blocks, strict=True)]
        return Transfer(move_id, keys, blocks, self._pools.copies_begun(), with_peer=with_peer)

    def redeem(self, ticket: bytes) -> ExportedBlocks | None:
        exported = self._tickets.pop(ticket, None)
        if exported is None or exported.transfer.is_ended:
            return None
        if self._clock() >= exported.expires_at:
            exported.transfer.end(EXPIRED)
            return None
        return exported

    @property
    def clears(self) -> tuple[ClearMark, ...]:
        return self.store.usage().clears

    def samples(self) -> Iterator[Sample]:
        yield from gauges(
            "worker_kv_peer_moves",
            "Exports of KV blocks under way to other workers, which pin them here, and reads.",
            {"export": len(self._exports), "read": len(self._reader)},
            by="direction",
        )
        if self.store_capacity is not None:
            yield from self.store.usage().samples()

    def leave_peers(self) -> None:
        left = [transfer for transfer in self._pending.values() if transfer.with_peer]
        self._cancel(transfer.move_id for transfer in left)
        self._reader.stop_ended()
        for transfer in left:
            self._forget(transfer)

    def close(self) -> None:
        self.store.close()

    def _pop_ended(self) -> list[MoveResult]:
        self._end_overdue()
        ended = [transfer for transfer in self._pending.values() if transfer.is_ended]
        for transfer in ended:
            self._forget(transfer)
        return [transfer.result() for transfer in ended]

    def _end_overdue(self) -> None:
        """Ends what a store that does not answer, or a reader, takes too long for."""
        if not self.store.check_answers():
            for transfer in self._pending.values():
                if not transfer.with_peer:
                    transfer.end(STALLED)
        self._end_expired()

    def _end_expired(self) -> None:
        now = self._clock() if self._exports else 0.0
        for exported in self._exports.values():
            if now >= exported.expires_at:
                exported.transfer.end(EXPIRED)

    def _add(self, transfer: Transfer) -> Transfer:
        if transfer.move_id in self._pending:
            raise ValueError(f"transfer {transfer.move_id} is under way")
        self._pending[transfer.move_id] = transfer
        return transfer

    def _cancel(self, move_ids: Iterable[int]) -> None:
        """Ends transfers now; the next `pop_ended` returns them, with what they have done."""
        for move_id in move_ids:
            if (transfer := self._pending.get(move_id)) is not None:
                transfer.end(CANCELLED)

    def _forget(self, transfer: Transfer) -> None:
        del self._pending[transfer.move_id]
        if (exported := self._exports.pop(transfer.move_id, None)) is not None:
            self._tickets.pop(exported.ticket, None)

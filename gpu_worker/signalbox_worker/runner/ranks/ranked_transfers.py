"""The transfers of a worker of several ranks, each of which has its share of every block.

Each rank transfers its share between its CPU pool and its store. Such a transfer has ended when it
has on all ranks, and has done what all of them have. One that is cancelled has ended at once, as
the command that ends it comes to each rank before any that uses its blocks. A block that one rank
lacks is a miss, and is removed from the stores of the others.

What one worker sends to another, which has as many ranks, are whole blocks: the share of each rank,
in the order of ranks. Rank 0 takes part in the call for all, with one digest for all shares, and
says alone whether a transfer goes on. So a block has arrived when every rank has its share, and one
that was read was exported on every rank until the last share had been copied.
"""

from collections.abc import Callable, Sequence
from functools import partial
from queue import Empty

from signalbox_contract.sections.store_moves import Export, Fetch, MoveResult, StoreMoves
from signalbox_contract.step import Step
from signalbox_worker.kv.store.pool_transfers import PoolTransfers
from signalbox_worker.kv.store.transfer import ExportedBlocks, Transfer
from signalbox_worker.runner.ranks.rank_blocks import BlockCopies
from signalbox_worker.runner.ranks.rank_pool import RankPool
from signalbox_worker.runner.ranks.service.rank_messages import (
    AskMoves,
    CloseBlocks,
    EndedMoves,
    OpenBlocks,
    RemoveBlock,
)

_UNANSWERED = "a rank does not copy its share of a block"


class _StoreTransfer(Transfer):
    """A transfer that each rank makes with a store of its own."""

    def __init__(
        self, move_id: int, found: Sequence[bytes], num_ranks: int, *, seeks: bool
    ) -> None:
        """`found` has the keys of a find; it is empty for others."""
        super().__init__(move_id, found)
        self._num_ranks = num_ranks
        self._seeks = seeks
        self.results: dict[int, MoveResult] = {}
        """Results of the ranks that have answered, by rank."""

    @property
    def has_all(self) -> bool:
        return len(self.results) == self._num_ranks

    @property
    def is_ended(self) -> bool:
        return self.has_all or super().is_ended

    def result(self) -> MoveResult:
        """Returns what all ranks have done: bytes of one rank, and the time of the slowest."""
        if not self.has_all:
            return super().result()
        every = self.results.values()
        return MoveResult(
            self.move_id,
            (max if self._seeks else min)(one.num_blocks for one in every),
            min(one.num_bytes for one in every),
            max(one.duration_ns for one in every),
            next((one.failed for one in every if one.failed), ""),
        )

    @property
    def lacking(self) -> bytes | None:
        """Key of the first block of a find that some ranks have found and others have not."""
        results = self.results.values()
        is_other = self._seeks or not self.keys
        if is_other or super().is_ended or any(one.failed for one in results):
            return None
        num_found = min(one.num_blocks for one in results)
        is_equal = num_found == max(one.num_blocks for one in results)
        return None if is_equal else self.keys[num_found]


class _PeerTransfer(Transfer):
    """A transfer from or to another worker, of which each rank has a share.

    Args:
        number: that of the blocks that the ranks open for it.
        share_bytes: of a block on each rank.
    """

    def __init__(
        self,
        move_id: int,
        keys: Sequence[bytes],
        number: int,
        copies: BlockCopies,
        share_bytes: Sequence[int],
    ) -> None:
        super().__init__(move_id, keys, with_peer=True)
        self.number, self.block_bytes = number, sum(share_bytes)
        self._copies, self._share_bytes = copies, share_bytes

    def copy_in(self, index: int, data: memoryview) -> bool:
        if len(data) != self.block_bytes:
            raise ValueError(f"a block has {self.block_bytes} bytes")
        shares, start = [], 0
        for num_bytes in self._share_bytes:
            shares.append(bytes(data[start : start + num_bytes]))
            start += num_bytes
        is_taken = self._copies.write(self.number, index, shares)
        if is_taken:
            self.kept(index, len(data))
        else:
            self.end(_UNANSWERED)
        return is_taken

    def copy_out(self, index: int, into: memoryview) -> bool:
        shares = self._copies.read(self.number, index)
        if shares is None:
            self.end(_UNANSWERED)
            return False
        into[:] = b"".join(shares)
        return not self.is_ended  # until then no block was anyone else's, on any rank

    def kept(self, index: int, num_bytes: int) -> None:
        """Counts the bytes of one rank, as the cost of a block does."""
        super().kept(index, self._share_bytes[0])


class RankedTransfers(PoolTransfers):
    """The transfers of all ranks.

    Args:
        own: those of rank 0's share.
        run: calls on the thread that works with the pools of rank 0, in order; need not wait.
    """

    def __init__(
        self, own: PoolTransfers, others: RankPool, *, run: Callable[[Callable[[], None]], None]
    ) -> None:
        super().__init__(own.store)  # of rank 0, which is about as full as that of each rank
        self._own, self._others, self._run = own, others, run
        self._num_ranks = 1 + len(others.hellos)
        self._share_bytes: tuple[int, ...] = ()
        self._asked: set[int] = set()
        """Ranks that have been asked what has ended, and have not answered."""
        self._are_open: dict[int, bool] = {}
        """True for each rank whose store was open when it answered last."""

    def bind_shares(self, share_bytes: Sequence[int]) -> None:
        """Transfers blocks of the pools that all ranks have bound; see `_PeerTransfer`."""
        self._hear()  # of pools that are gone on all ranks
        self._asked.clear()
        self._share_bytes = tuple(share_bytes)

    def redeem(self, ticket: bytes) -> ExportedBlocks | None:
        """Returns the blocks once all ranks have done what comes before the export."""
        exported = self._tickets.get(ticket)
        if exported is not None:
            transfer = exported.transfer
            assert isinstance(transfer, _PeerTransfer)
            if not self._others.copies.are_open(transfer.number):
                return None
        return super().redeem(ticket)

    def _begin_with_store(self, moves: StoreMoves) -> None:
        moves = moves.of_store
        if not moves.move_ids and not moves.cancels:
            return
        self._others.send(Step(epoch=0, step_id=0, store_moves=moves))
        self._run(partial(self._own.begin, moves))
        keys = {find.move_id: find.hashes for find in moves.finds}
        seeks = {find.move_id for find in moves.finds if find.seeks}
        for move_id in moves.move_ids:
            found, num_ranks = keys.get(move_id, ()), self._num_ranks
            self._add(_StoreTransfer(move_id, found, num_ranks, seeks=move_id in seeks))

    def _begin_with_peer(self, moved: Fetch | Export) -> Transfer:
        copies = self._others.copies
        number = copies.announce()
        transfer = _PeerTransfer(moved.move_id, moved.hashes, number, copies, self._share_bytes)
        self._add(transfer)
        command = OpenBlocks(number, tuple(moved.cpu_blocks))
        self._others.send(command)
        self._run(partial(copies.own.open, command, self._own))
        return transfer

    def _pop_ended(self) -> list[MoveResult]:
        """Returns the transfers of which all ranks have said so; asks those that have not."""
        self._hear()
        ended = super()._pop_ended()
        if not self._asked and any(not one.with_peer for one in self._pending.values()):
            self._asked.update(range(self._num_ranks))
            self._others.send(AskMoves())
            self._run(self._report_own)
        return ended

    def _end_overdue(self) -> None:
        self._end_expired()  # each rank says itself that its store does not answer

    def _report_own(self) -> None:
        report = EndedMoves(tuple(self._own.pop_ended()), self._own.store.is_open)
        self._others.ended_moves.put((0, report))

    def _hear(self) -> None:
        """Takes what ranks have reported since."""
        while True:
            try:
                rank, report = self._others.ended_moves.get_nowait()
            except Empty:
                return
            self._asked.discard(rank)
            self._are_open[rank] = report.is_open
            for result in report.results:
                if isinstance(transfer := self._pending.get(result.move_id), _StoreTransfer):
                    transfer.results[rank] = result

    def _forget(self, transfer: Transfer) -> None:
        super()._forget(transfer)
        if isinstance(transfer, _PeerTransfer):  # before anything else may use its blocks
            self._others.copies.forget(transfer.number)
            closing = CloseBlocks(transfer.number)
            self._others.send(closing)
            self._run(partial(self._others.copies.own.close_blocks, closing))
        elif isinstance(transfer, _StoreTransfer):
            self._remove_lacking(transfer)

    def _remove_lacking(self, transfer: _StoreTransfer) -> None:
        are_open = all(self._are_open.values())  # else the block may be found later
        if are_open and (key := transfer.lacking) is not None:
            self._others.send(RemoveBlock(key))
            self._run(partial(self._own.store.remove, key))

"""Moves between the CPU pools of all ranks and their stores: each rank moves its share of a block.

A move has ended when it has on all ranks, and has done what all of them have. One that is called
off has ended at once, as the command that ends it comes to each rank before any that uses its
blocks. A block that one rank lacks is a miss, and is removed from the stores of the others.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty

from signalbox_contract.sections.store_moves import MoveResult, StoreMoves
from signalbox_contract.step import Step
from signalbox_worker.kv_store.block_store import StoreUsage
from signalbox_worker.kv_store.move_queue import MoveQueue
from signalbox_worker.kv_store.pool_moves import CANCELLED
from signalbox_worker.ranks.rank_pool import RankPool
from signalbox_worker.ranks.service.rank_messages import Ask, EndedMoves, RemoveBlock


@dataclass(slots=True, eq=False)
class _Move:
    """A move that has not ended on all ranks."""

    found: Sequence[bytes] | None
    """Keys of a find; None of other moves."""
    results: dict[int, MoveResult] = field(default_factory=dict)
    """Results of the ranks that have answered, by rank."""
    is_cancelled: bool = False


class RankedMoves:
    """Implements `StoreQueue`; called from one thread.

    Args:
        own: the moves of rank 0.
        run: calls on the thread that works with the pools of rank 0, in order; need not wait.
    """

    def __init__(
        self, own: MoveQueue, others: RankPool, *, run: Callable[[Callable[[], None]], None]
    ) -> None:
        self._own, self._others, self._run = own, others, run
        self._num_ranks = 1 + len(others.hellos)
        self._moves: dict[int, _Move] = {}
        self._asked: set[int] = set()
        """Ranks that have been asked what has ended, and have not answered."""
        self._are_open: dict[int, bool] = {}
        """True for each rank whose store was open when it answered last."""

    def begin(self, moves: StoreMoves) -> None:
        moves = moves.of_store
        if not moves.move_ids and not moves.cancels:
            return
        self._others.send(Step(epoch=0, step_id=0, store_moves=moves))
        self._run(partial(self._own.begin, moves))
        keys = {find.move_id: find.hashes for find in moves.finds}
        self._moves |= {move_id: _Move(keys.get(move_id)) for move_id in moves.move_ids}
        for move_id in moves.cancels:
            if (move := self._moves.get(move_id)) is not None:
                move.is_cancelled = True

    def pop_ended(self) -> list[MoveResult]:
        """Returns the moves of which all ranks have said so; asks those that have not."""
        if not self._moves:
            return []
        self._hear()
        ended = [
            (move_id, move)
            for move_id, move in self._moves.items()
            if move.is_cancelled or len(move.results) == self._num_ranks
        ]
        for move_id, move in ended:
            del self._moves[move_id]
            self._remove_lacking(move)
        if self._moves and not self._asked:
            self._ask()
        return [_merged(move_id, move.results, self._num_ranks) for move_id, move in ended]

    def usage(self) -> StoreUsage:
        """Returns what the store of rank 0 holds: about as many blocks as that of each rank."""
        return self._own.usage()

    def forget(self) -> None:
        """Forgets the moves of pools that are gone on all ranks."""
        self._hear()
        self._moves.clear()
        self._asked.clear()

    def _ask(self) -> None:
        self._asked.update(range(self._num_ranks))
        self._others.send(Ask.ENDED_MOVES)
        self._run(self._report_own)

    def _report_own(self) -> None:
        report = EndedMoves(tuple(self._own.pop_ended()), self._own.is_open)
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
                if (move := self._moves.get(result.move_id)) is not None:
                    move.results[rank] = result

    def _remove_lacking(self, move: _Move) -> None:
        """Removes the first block of a find that some ranks have found and others have not."""
        results = move.results.values()
        if move.found is None or move.is_cancelled or any(one.failed for one in results):
            return
        if not all(self._are_open.values()):
            return  # it may be found later
        num_found = min(one.num_blocks for one in results)
        if num_found < max(one.num_blocks for one in results):
            key = move.found[num_found]
            self._others.send(RemoveBlock(key))
            self._run(partial(self._own.remove, key))


def _merged(move_id: int, results: Mapping[int, MoveResult], num_ranks: int) -> MoveResult:
    """Returns what all ranks have done: bytes of one rank, and the time of the slowest."""
    if len(results) < num_ranks:
        return MoveResult(move_id, 0, failed=CANCELLED)
    every = results.values()
    return MoveResult(
        move_id,
        min(one.num_blocks for one in every),
        min(one.num_bytes for one in every),
        max(one.duration_ns for one in every),
        next((one.failed for one in every if one.failed), ""),
    )

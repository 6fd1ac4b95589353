"""Moves of blocks of one lease's CPU pool, to and from a store or other workers."""

from collections.abc import Callable, Iterable, Sequence

from signalbox_worker.kv_store.move import Move

CANCELLED = "cancelled"


class PoolMoves:
    """The moves that have begun and whose end nothing has taken. No method waits.

    Args:
        block: returns the bytes of a block of the CPU pool.
        copies_begun: returns a function that waits until the copies to and from the CPU pool have
            ended that were begun before; None if copies end within the step that names them.
    """

    def __init__(
        self,
        *,
        block: Callable[[int], memoryview],
        copies_begun: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        self._block = block
        self._copies_begun = copies_begun
        self._moves: dict[int, Move] = {}

    def cancel(self, move_ids: Iterable[int]) -> None:
        """Ends moves now; the next `pop_ended` returns them, with what they have done."""
        for move_id in move_ids:
            if (move := self._moves.get(move_id)) is not None:
                move.end(CANCELLED)

    def close(self) -> None:
        """Ends all moves; the CPU pool is not touched afterwards."""
        self.cancel(self._moves)
        self._moves.clear()

    def _begin(self, move: Move) -> Move:
        if move.move_id in self._moves:
            raise ValueError(f"move {move.move_id} is under way")
        self._moves[move.move_id] = move
        return move

    def _begin_copying(
        self, move_id: int, keys: Sequence[bytes], cpu_blocks: Sequence[int]
    ) -> Move:
        if not keys:
            raise ValueError("a move names at least one block")
        blocks = [self._block(index) for _, index in zip(keys, cpu_blocks, strict=True)]
        copies = self._copies_begun() if self._copies_begun else None
        return self._begin(Move(move_id, keys, blocks, copies))

    def _take_ended(self) -> list[Move]:
        ended = [move for move in self._moves.values() if move.is_ended]
        for move in ended:
            del self._moves[move.move_id]
        return ended

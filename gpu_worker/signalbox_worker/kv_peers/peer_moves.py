"""Moves between a lease's CPU pool and other workers: blocks that are lent, and that arrive.

A lend keeps its blocks until it has ended, and its end excludes the copying of a block, by the
move's lock. So whatever is read holds what the scheduler said of it, also if the lend is called
off, or its time is over, while a block is read.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from signalbox_contract.sections.store_moves import Lend, MoveResult
from signalbox_worker.kv_store.move import Move
from signalbox_worker.kv_store.pool_moves import PoolMoves

EXPIRED = "the time of the lend is over"


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LentBlocks:
    """Blocks that a ticket is for."""

    move: Move
    ticket: bytes
    block_bytes: int
    reader: str
    """Name in the certificate of the worker that may read them; empty if callers show none."""
    expires_at: float
    """Seconds on the monotonic clock."""

    def copy_out(self, index: int) -> bytearray | None:
        """Returns the bytes of a block; None if it is lent no more. May wait for copies."""
        block = bytearray(self.block_bytes)
        if not self.move.begin(index):
            return None
        return block if self.move.copy_out(index, memoryview(block)) else None


class PeerMoves(PoolMoves):
    """The moves of one lease from and to other workers. No method waits.

    All are called on the execution thread, but for `take`.

    Args:
        block_bytes: of each block of the CPU pool.
    """

    def __init__(
        self,
        *,
        block_bytes: int,
        block: Callable[[int], memoryview],
        copies_begun: Callable[[], Callable[[], None]] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(block=block, copies_begun=copies_begun)
        self.block_bytes = block_bytes
        self._clock = clock
        self._lent: dict[int, LentBlocks] = {}
        self._tickets: dict[bytes, LentBlocks] = {}
        """Lent blocks whose ticket no reader has shown yet."""

    @property
    def num_lent(self) -> int:
        """Lends whose end `pop_ended` has not returned; may be asked for on any thread."""
        return len(self._lent)

    def lend(self, lend: Lend) -> None:
        """Lets the blocks be read, once, by what shows the ticket in time."""
        lent = LentBlocks(
            move=self._begin_copying(lend.move_id, lend.hashes, lend.cpu_blocks),
            ticket=lend.ticket,
            block_bytes=self.block_bytes,
            reader=lend.reader,
            expires_at=self._clock() + lend.lasts_ns / 1e9,
        )
        self._lent[lend.move_id] = self._tickets[lend.ticket] = lent

    def receive(self, move_id: int, keys: Sequence[bytes], cpu_blocks: Sequence[int]) -> Move:
        """Returns a move for what comes from another worker."""
        return self._begin_copying(move_id, keys, cpu_blocks)

    def take(self, ticket: bytes) -> LentBlocks | None:
        """Returns what a ticket is for, once; None if that is over. Safe from any thread."""
        lent = self._tickets.pop(ticket, None)
        if lent is None or lent.move.is_ended:
            return None
        if self._clock() >= lent.expires_at:
            lent.move.end(EXPIRED)
            return None
        return lent

    def pop_ended(self) -> list[MoveResult]:
        """Returns the moves that have ended since the last call, in the order of their begin."""
        if self._lent:
            self._end_expired()
        ended = self._take_ended()
        for move in ended:
            if (lent := self._lent.pop(move.move_id, None)) is not None:
                self._tickets.pop(lent.ticket, None)
        return [move.result() for move in ended]

    def close(self) -> None:
        super().close()
        self._lent.clear()
        self._tickets.clear()

    def _end_expired(self) -> None:
        now = self._clock()
        for lent in self._lent.values():
            if now >= lent.expires_at:
                lent.move.end(EXPIRED)

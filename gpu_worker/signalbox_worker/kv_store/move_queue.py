"""Moves blocks between a lease's CPU pool and a store, beside the lease's steps.

A thread reads a block into a buffer of its own, and copies it into the pool when the store has
verified it; a block that is written is copied into the buffer first. So the pool's blocks are
touched during copies in RAM alone: a move that is cancelled, that fails, or whose device hangs has
ended at once, and its blocks are the scheduler's again.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial

from signalbox_contract.sections.store_moves import ClearMark, MoveResult, StoreMoves
from signalbox_worker.kv_store.block_store import BlockStore, StoreError, StoreUsage
from signalbox_worker.kv_store.move import Move
from signalbox_worker.kv_store.move_threads import MoveThreads
from signalbox_worker.kv_store.pool_moves import PoolMoves

logger = logging.getLogger(__name__)

STALLED = "the store does not answer"


class MoveQueue(PoolMoves):
    """The moves of one lease. No method waits for the store; they are called from one thread."""

    def __init__(
        self,
        store: BlockStore,
        threads: MoveThreads,
        *,
        block: Callable[[int], memoryview],
        copies_begun: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        super().__init__(block=block, copies_begun=copies_begun)
        self._store, self._threads = store, threads

    def __len__(self) -> int:
        """Returns the number of moves whose end `pop_ended` has not returned."""
        return len(self._moves)

    def usage(self) -> StoreUsage:
        """Returns what the store holds; safe from any thread."""
        return self._store.usage()

    @property
    def is_open(self) -> bool:
        """False while the store finds and keeps nothing yet."""
        return self._store.is_open

    def begin(self, moves: StoreMoves) -> None:
        """Begins a section's moves to and from the store, after those it calls off have ended."""
        self.cancel(moves.cancels)
        for clear in moves.clears:
            tenant = None if clear.tenant is None else clear.tenant.encode()
            self.clear(clear.move_id, tenant, clear.mark)
        for find in moves.finds:
            self.find(find.move_id, find.hashes)
        for fetch in moves.fetches:
            if fetch.source is None:
                self.fetch(fetch.move_id, fetch.hashes, fetch.cpu_blocks)
        for store in moves.stores:
            self.store(store.move_id, store.hashes, store.cpu_blocks, store.tenant.encode())
        self.cancel(moves.cancels)  # some may be of moves that have just begun

    def find(self, move_id: int, keys: Sequence[bytes]) -> None:
        """Asks how many of the first keys the store has."""
        if not keys:
            raise ValueError("a find names at least one key")
        move = self._begin(Move(move_id, keys))
        self._threads.look_up(partial(self._find, move))

    def fetch(self, move_id: int, keys: Sequence[bytes], cpu_blocks: Sequence[int]) -> None:
        """Brings each key's block from the store into a block of the CPU pool."""
        move = self._begin_copying(move_id, keys, cpu_blocks)
        for index in range(len(keys)):
            self._threads.read(partial(self._read, move, index))

    def store(
        self, move_id: int, keys: Sequence[bytes], cpu_blocks: Sequence[int], tenant: bytes
    ) -> None:
        """Writes blocks of the CPU pool to the store, where they count against a tenant's share."""
        move = self._begin_copying(move_id, keys, cpu_blocks)
        for index in range(len(keys)):
            self._threads.write(partial(self._write, move, index, tenant))

    def clear(self, move_id: int, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        """Removes a tenant's blocks, or all, after the writes that were asked for before."""
        move = self._begin(Move(move_id, ()))
        self._threads.clear(partial(self._clear, move, tenant, mark))

    def remove(self, key: bytes) -> None:
        """Removes a block from the store, which says nothing of it."""
        self._threads.write(partial(self._remove, key))

    def pop_ended(self) -> list[MoveResult]:
        """Returns the moves that have ended since the last call, in the order of their begin."""
        if self._moves and not self._threads.answer:
            for move in self._moves.values():
                move.end(STALLED)
        return [move.result() for move in self._take_ended()]

    def _find(self, move: Move, buffer: memoryview) -> None:
        with _Failing(move):
            if move.begin(0):
                move.found(self._store.find(move.keys))

    def _read(self, move: Move, index: int, buffer: memoryview) -> None:
        with _Failing(move):
            if not move.begin(index):
                return
            if self._store.read(move.keys[index], buffer):
                move.copy_in(index, buffer)
            else:
                move.miss(index)

    def _write(self, move: Move, index: int, tenant: bytes, buffer: memoryview) -> None:
        with _Failing(move):
            if not move.begin(index) or not move.copy_out(index, buffer):
                return
            if self._store.write(move.keys[index], buffer, tenant):
                if index == len(move.keys) - 1:
                    self._store.find(move.keys)  # uses the first one last, to be evicted last
                move.kept(index, len(buffer))
            else:
                move.miss(index)

    def _clear(
        self, move: Move, tenant: bytes | None, mark: ClearMark | None, buffer: memoryview
    ) -> None:
        with _Failing(move):
            move.begin(0)
            # Even if it was cancelled: what is cleared must not return.
            self._store.clear(tenant, mark)
            move.end()

    def _remove(self, key: bytes, buffer: memoryview) -> None:
        with suppress(StoreError):  # which the store has counted and logged
            self._store.remove(key)


class _Failing:
    """Ends a move by the error that is raised within; the thread goes on."""

    def __init__(self, move: Move) -> None:
        self._move = move

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        if not isinstance(error, StoreError):  # a mistake of ours, or of a store that someone added
            logger.error("a call to the KV store failed", exc_info=error)
        self._move.end(str(error) or type(error).__name__)
        return True

"""The moves of a runner's blocks between its CPU pool, its store and other workers."""

from collections.abc import Callable

from signalbox_worker.kv_peers.peer_moves import PeerMoves
from signalbox_worker.kv_store.move_queue import MoveQueue
from signalbox_worker.kv_store.runner_store import Block, RunnerStore


class HasMoves:
    """The part of a runner that moves blocks, whether it computes natively or in PyTorch."""

    _store: RunnerStore | None = None
    _peer_moves: PeerMoves | None = None

    def use_store(self, store: RunnerStore) -> None:
        self._store = store

    def move_queue(self) -> MoveQueue | None:
        return self._store.queue if self._store is not None else None

    def peer_moves(self) -> PeerMoves | None:
        return self._peer_moves

    def _bind_moves(
        self,
        block: Block,
        *,
        block_bytes: int,
        copies_begun: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        """Moves blocks of a new CPU pool from now on; see `MoveQueue`."""
        if self._store is not None:
            self._store.bind(block, copies_begun)
        self._peer_moves = PeerMoves(
            block_bytes=block_bytes, block=block, copies_begun=copies_begun
        )

    def _release_moves(self) -> None:
        """Ends the moves of the pool, which is not touched afterwards."""
        if self._store is not None:
            self._store.release()
        if self._peer_moves is not None:
            self._peer_moves.close()
            self._peer_moves = None

    def close(self, failure: str | None = None) -> None:
        if self._store is not None:
            self._store.close()

"""A runner's store, and the moves between it and the pools that the runner has."""

from collections.abc import Callable

from signalbox_contract.model import StoreCapacity
from signalbox_worker.kv_store.block_store import BlockStore
from signalbox_worker.kv_store.move_queue import MoveQueue
from signalbox_worker.kv_store.move_threads import MoveThreads

Block = Callable[[int], memoryview]


class RunnerStore:
    """Outlives pools, as a lease may; used on the execution thread, but for `close`."""

    def __init__(self, store: BlockStore, capacity: StoreCapacity) -> None:
        self.store = store
        self.capacity = capacity
        self._threads = MoveThreads(block_bytes=store.block_bytes)
        self._pool: Block | None = None
        self._copies_begun: Callable[[], Callable[[], None]] | None = None
        self.queue = MoveQueue(
            store, self._threads, block=self._block, copies_begun=self._begun_copies
        )

    def bind(
        self, pool: Block, copies_begun: Callable[[], Callable[[], None]] | None = None
    ) -> None:
        """Moves blocks of a new pool from now on; see `MoveQueue`."""
        self.release()
        self._pool, self._copies_begun = pool, copies_begun

    def release(self) -> None:
        """Ends the moves of the pool, which is not touched afterwards."""
        self.queue.close()
        self._pool = self._copies_begun = None

    def close(self) -> None:
        """Ends what is under way, and the store; on any thread."""
        self._threads.close()
        self.store.close()

    def _block(self, index: int) -> memoryview:
        if self._pool is None:
            raise RuntimeError("init_cache_engine comes first")
        return self._pool(index)

    def _begun_copies(self) -> Callable[[], None]:
        return self._copies_begun() if self._copies_begun is not None else _nothing


def _nothing() -> None:
    """Waits for no copies: they end within the step that names them."""

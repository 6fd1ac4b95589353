"""Transfers end, once, and nothing of a transfer is touched after its end."""

import logging
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from signalbox_contract.sections.store_moves import (
    Clear,
    Fetch,
    Find,
    MoveResult,
    Store,
    StoreMoves,
)
from signalbox_worker.kv.cache.block_pools import BlockPools
from signalbox_worker.kv.store.memory_store import MemoryStore
from signalbox_worker.kv.store.pool_transfers import CANCELLED, STALLED, PoolTransfers
from signalbox_worker.kv.store.store_threads import StoreThreads
from signalbox_worker.kv.store.transfer import Transfer
from tests.gpu_worker.kv.store.stores import (
    BLOCK_BYTES,
    FailingStore,
    HangingStore,
    content_of,
    filled,
    keys_of,
)

NUM_CPU_BLOCKS = 8


class Clock:
    """A clock that stands still until a test moves it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Pools(BlockPools):
    """A CPU pool; copies to and from it may be under way."""

    def __init__(self, copies_begun: Callable[[], Callable[[], None]] | None) -> None:
        super().__init__(num_gpu_blocks=1, num_cpu_blocks=NUM_CPU_BLOCKS, block_bytes=BLOCK_BYTES)
        self._begun = copies_begun or (lambda: lambda: None)

    def copies_begun(self) -> Callable[[], None]:
        return self._begun()


class Moves:
    """Transfers between a pool and a store, and the store's threads."""

    def __init__(
        self,
        store: MemoryStore,
        *,
        num_readers: int = 2,
        copies_begun: Callable[[], Callable[[], None]] | None = None,
    ) -> None:
        pools = Pools(copies_begun)
        self.pool = pools.cpu_pool
        self.clock = Clock()
        self.threads = StoreThreads(store, num_readers=num_readers, stall_s=5.0, clock=self.clock)
        self.queue = PoolTransfers(self.threads)
        self.queue.bind(pools)

    def find(self, move_id: int, keys: Sequence[bytes], *, seeks: bool = False) -> None:
        self.queue.begin(StoreMoves(finds=[Find(move_id, keys, seeks)]))

    def fetch(self, move_id: int, keys: Sequence[bytes], blocks: Sequence[int]) -> None:
        self.queue.begin(StoreMoves(fetches=[Fetch(move_id, keys, blocks)]))

    def store(
        self, move_id: int, keys: Sequence[bytes], blocks: Sequence[int], tenant: str
    ) -> None:
        self.queue.begin(StoreMoves(stores=[Store(move_id, keys, blocks, tenant)]))

    def clear(self, move_id: int, tenant: str | None) -> None:
        self.queue.begin(StoreMoves(clears=[Clear(move_id, tenant)]))

    def cancel(self, *move_ids: int) -> None:
        self.queue.begin(StoreMoves(cancels=move_ids))

    def fill(self, cpu_block: int, number: int) -> None:
        self.pool[cpu_block] = np.frombuffer(content_of(number), dtype=np.uint8)

    def await_ended(self, num_moves: int = 1) -> list[MoveResult]:
        """Returns so many results, in the order in which the moves ended."""
        results: list[MoveResult] = []
        while len(results) < num_moves:
            results += self.queue.pop_ended()
            time.sleep(0)
        return results


@contextmanager
def moving(store: MemoryStore, **options: object) -> Iterator[Moves]:
    """Yields moves; afterwards no move is under way and no thread is left."""
    moves = Moves(store, **options)  # type: ignore[arg-type]
    try:
        yield moves
        assert moves.queue.pop_ended() == (), "none is under way"
    finally:
        if isinstance(store, HangingStore) and store.hangs:
            store.release()
        moves.queue.unbind()
        assert moves.threads.close(wait_s=60)
    assert not [t for t in threading.enumerate() if t.name.startswith("kv-")]


def make_store(*numbers: int) -> MemoryStore:
    return filled(MemoryStore(block_bytes=BLOCK_BYTES, num_blocks=8), *numbers)


def test_a_find_counts_the_leading_keys_that_are_there() -> None:
    with moving(make_store(1, 2, 4)) as moves:
        moves.find(7, keys_of(1, 2, 3, 4))
        (result,) = moves.await_ended()
    assert (result.move_id, result.num_blocks, result.num_bytes) == (7, 2, 0)
    assert not result.failed


@pytest.mark.parametrize(("keys", "num_lacking"), [((5, 3, 2, 6, 1), 2), ((1, 3), 0), ((5, 3), 2)])
def test_a_find_that_seeks_counts_the_keys_before_the_first_that_is_there(
    keys: tuple[int, ...], num_lacking: int
) -> None:
    with moving(make_store(1, 2, 4)) as moves:
        moves.find(7, keys_of(*keys), seeks=True)
        (result,) = moves.await_ended()
    assert (result.num_blocks, result.num_bytes, result.failed) == (num_lacking, 0, "")


def test_a_fetch_brings_each_block_to_its_place_in_the_pool() -> None:
    with moving(make_store(1, 2, 3)) as moves:
        moves.fetch(1, keys_of(1, 2, 3), [5, 0, 6])
        (result,) = moves.await_ended()
        found = [bytes(moves.pool[i]) for i in (5, 0, 6)]
        untouched = np.delete(moves.pool, [5, 0, 6], axis=0)
    assert (result.num_blocks, result.num_bytes, result.failed) == (3, 3 * BLOCK_BYTES, "")
    assert result.duration_ns > 0
    assert found == [content_of(1), content_of(2), content_of(3)]
    assert not untouched.any()


def test_a_fetch_ends_at_the_first_block_that_is_missing() -> None:
    with moving(make_store(1, 3, 4)) as moves:
        moves.fetch(1, keys_of(1, 2, 3, 4), [0, 1, 2, 3])
        (result,) = moves.await_ended()
    assert (result.num_blocks, result.failed) == (1, "")


def test_a_store_is_found_afterwards_and_fetched_back() -> None:
    with moving(make_store()) as moves:
        moves.fill(3, 10)
        moves.fill(4, 11)
        moves.store(1, keys_of(10, 11), [3, 4], "tenant")
        (stored,) = moves.await_ended()
        moves.find(2, keys_of(10, 11))
        moves.fetch(3, keys_of(10, 11), [0, 1])
        results = {r.move_id: r for r in moves.await_ended(2)}
        found = [bytes(moves.pool[i]) for i in (0, 1)]
    assert (stored.num_blocks, stored.num_bytes, stored.failed) == (2, 2 * BLOCK_BYTES, "")
    assert (results[2].num_blocks, results[3].num_blocks) == (2, 2)
    assert found == [content_of(10), content_of(11)]


def test_a_store_that_keeps_nothing_is_no_failure() -> None:
    with moving(MemoryStore(block_bytes=BLOCK_BYTES, num_blocks=0)) as moves:
        moves.store(1, keys_of(1), [0], "")
        (result,) = moves.await_ended()
    assert (result.num_blocks, result.failed) == (0, "")


def test_clearing_a_tenant_follows_the_writes_before_it() -> None:
    with moving(make_store()) as moves:
        moves.store(1, keys_of(1), [0], "a")
        moves.store(2, keys_of(2), [0], "b")
        moves.clear(3, "a")
        moves.store(4, keys_of(3), [0], "a")
        results = moves.await_ended(4)
        moves.find(5, keys_of(1))
        moves.find(6, keys_of(2, 3))
        found = {r.move_id: r.num_blocks for r in moves.await_ended(2)}
    assert not [r for r in results if r.failed]
    assert found == {5: 0, 6: 2}


def test_a_cancelled_fetch_ends_at_once_and_never_writes_to_its_blocks() -> None:
    store = HangingStore()
    filled(store, 1, 2)
    store.hangs = True
    with moving(store) as moves:
        moves.fetch(1, keys_of(1, 2), [0, 1])
        store.entered.acquire()
        moves.cancel(1)
        (result,) = moves.queue.pop_ended()  # the thread is still in its call
        moves.pool[:] = 99  # the blocks are another request's now
        store.release()
        store.hangs = False
        moves.fetch(2, keys_of(1), [7])
        moves.await_ended()
        assert moves.threads.close(wait_s=60)
    assert (result.num_blocks, result.failed) == (0, CANCELLED)
    assert (moves.pool[:7] == 99).all()


def test_a_cancelled_store_frees_its_blocks_while_the_device_writes() -> None:
    store = HangingStore()
    store.hangs = True
    with moving(store) as moves:
        moves.fill(0, 1)
        moves.store(1, keys_of(1, 2), [0, 1], "")
        store.entered.acquire()  # the first block is on its way
        moves.cancel(1)
        (result,) = moves.queue.pop_ended()
        moves.pool[:] = 99
        store.release()
        store.hangs = False
        moves.clear(2, "another")  # after it in the same queue
        moves.await_ended()
    into = bytearray(BLOCK_BYTES)
    assert result.failed == CANCELLED
    assert store.read(keys_of(1)[0], memoryview(into))
    assert bytes(into) == content_of(1)  # as it was when it was taken
    assert not store.find(keys_of(2))


def test_cancelling_what_has_ended_or_never_was_changes_nothing() -> None:
    with moving(make_store(1)) as moves:
        moves.find(1, keys_of(1))
        (result,) = moves.await_ended()
        moves.cancel(1, 2)
    assert not result.failed


def test_a_clear_of_many_blocks_may_take_minutes() -> None:
    store = HangingStore()
    filled(store, 1)
    store.hangs = True
    with moving(store) as moves:
        moves.clear(1, None)
        store.entered.acquire()
        moves.clock.now = 299.0
        assert not moves.queue.pop_ended()
        store.hangs = False
        store.release()
        (cleared,) = moves.await_ended()
    assert not cleared.failed
    assert store.usage().num_blocks == 0


def test_a_clear_that_hangs_ends_all_moves() -> None:
    store = HangingStore()
    store.hangs = True
    with moving(store) as moves:
        moves.clear(1, None)
        store.entered.acquire()
        moves.clock.now = 301.0
        (cleared,) = moves.queue.pop_ended()
    assert cleared.failed == STALLED


def test_a_read_that_hangs_ends_all_moves_and_is_said_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = HangingStore()
    filled(store, 1)
    store.hangs = True
    with moving(store, num_readers=1) as moves:
        moves.fetch(1, keys_of(1), [0])
        store.entered.acquire()
        assert not moves.queue.pop_ended()
        moves.clock.now = 5.1
        (first,) = moves.queue.pop_ended()
        moves.find(2, keys_of(1))
        (second,) = moves.queue.pop_ended()
        store.hangs = False
        store.release()
        assert (first.failed, second.failed) == (STALLED, STALLED)
        deadline = time.monotonic() + 60
        while not moves.threads.check_answers():
            assert time.monotonic() < deadline
        moves.find(3, keys_of(1))
        (third,) = moves.await_ended()
    assert (third.num_blocks, third.failed) == (1, "")
    said = [r.levelno for r in caplog.records if "answer" in r.getMessage()]
    assert said == [logging.ERROR, logging.WARNING]


@pytest.mark.parametrize("error", [None, RuntimeError("a mistake"), OSError(5, "I/O error")])
def test_an_error_of_the_store_fails_the_move_and_not_the_thread(error: Exception | None) -> None:
    with moving(FailingStore(error), num_readers=1) as moves:
        for _ in range(2):
            moves.find(1, keys_of(1))
            moves.fetch(2, keys_of(1), [0])
            moves.store(3, keys_of(1), [0], "")
            moves.clear(4, None)
            results = moves.await_ended(4)
            assert all(r.failed and not r.num_blocks for r in results)


def test_a_block_is_not_touched_before_earlier_copies_have_ended() -> None:
    copied, asked = threading.Event(), threading.Semaphore(0)

    def copies_begun() -> Callable[[], None]:
        def wait() -> None:
            asked.release()
            copied.wait()

        return wait

    with moving(make_store(1), copies_begun=copies_begun) as moves:
        moves.fill(1, 2)
        moves.fetch(1, keys_of(1), [0])
        moves.store(2, keys_of(2), [1], "")
        for _ in range(2):
            asked.acquire()
        assert not moves.pool[0].any()
        assert not moves.queue.pop_ended()
        copied.set()
        moves.await_ended(2)
        assert bytes(moves.pool[0]) == content_of(1)


def test_finds_go_before_the_reads_that_have_not_begun() -> None:
    store = HangingStore()
    filled(store, 1, 2)
    store.hangs = True
    with moving(store, num_readers=1) as moves:
        moves.fetch(1, keys_of(1, 2), [0, 1])
        store.entered.acquire()
        moves.find(2, keys_of(1))
        moves.find(3, keys_of(2))
        store.hangs = False
        store.release()
        results = moves.await_ended(3)
    assert [r.num_blocks for r in sorted(results)] == [2, 1, 1]
    assert store.calls == ["read 1", "find 1", "find 2", "read 2"]


def test_moves_end_when_the_queue_is_closed_and_the_pool_is_let_go() -> None:
    store = HangingStore()
    filled(store, 1)
    store.hangs = True
    with moving(store, num_readers=1) as moves:
        moves.fetch(1, keys_of(1), [0])
        store.entered.acquire()
        moves.queue.unbind()
        pool = weakref.ref(moves.pool)
        moves.pool = np.zeros((1, 1), dtype=np.uint8)
        assert pool() is None  # though the thread is still in its call
        store.release()
        store.hangs = False


def test_a_move_of_closed_threads_ends() -> None:
    with moving(make_store(1)) as moves:
        moves.threads.close(wait_s=60)
        moves.find(1, keys_of(1))
        (result,) = moves.queue.pop_ended()
    assert result.failed == STALLED


def test_what_names_no_block_or_a_move_under_way_is_refused() -> None:
    store = HangingStore()
    store.hangs = True
    with moving(store) as moves:
        for call in (moves.fetch, lambda *_: moves.find(1, [])):
            with pytest.raises(ValueError, match="at least one"):
                call(1, [], [])
        moves.store(1, keys_of(1), [0], "")
        with pytest.raises(ValueError, match="under way"):
            moves.find(1, keys_of(1))
        moves.cancel(1)
        moves.queue.pop_ended()


def test_a_move_that_ends_before_its_first_call_has_taken_no_time() -> None:
    transfer = Transfer(1, keys_of(2))
    transfer.end(CANCELLED)
    assert not transfer.begin(0), "a thread takes the job up that was queued"
    assert transfer.result() == MoveResult(1, 0, failed=CANCELLED)

"""A store of KV blocks, and threads that wait for it, so that no other thread of the worker does.

A call to a device may take long, and one to a device that has failed may never return. A thread
that is in such a call is left alone, as nothing can end it; until it returns, the store counts as
stalled, and nothing more is asked of it. The threads are daemons, so that they do not keep the
process from leaving.

A thread reads a block into a buffer of its own, and copies it into the pool when the store has
verified it; a block that is written is copied into the buffer first. So the pool's blocks are
touched during copies in RAM alone: a transfer that is cancelled, that fails, or whose device hangs
has ended at once, and its blocks are the scheduler's again.
"""

import logging
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from signalbox_contract.model import StoreCapacity
from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.store.block_store import BlockStore, StoreError, StoreUsage
from signalbox_worker.kv.store.memory_store import MemoryStore
from signalbox_worker.kv.store.transfer import Transfer

logger = logging.getLogger(__name__)

NUM_READERS = 4
"""Reads under way at once: an NVMe device is slow with one."""
STALL_S = 10.0
"""A call that takes longer means that the store does not answer."""
CLEAR_STALL_S = 300.0
"""The same of a clear, which may be of ten million blocks."""

Job = Callable[[memoryview], None]
"""Called with the thread's own buffer of `block_bytes` bytes, page-aligned; must not raise."""


class StoreThreads:
    """Threads of one store: some for lookups and reads, and one that writes, in order.

    Args:
        capacity: what the worker announces of the store; None if it announces none.
        open_for: opens the store for blocks of an arithmetic, as a worker announces it.
    """

    def __init__(
        self,
        store: BlockStore,
        capacity: StoreCapacity | None = None,
        *,
        num_readers: int = NUM_READERS,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
        open_for: Callable[[str], None] = lambda _: None,
    ) -> None:
        self.store = store
        self.capacity = capacity
        self.open_for = open_for
        self._stall_s = stall_s
        self._clock = clock
        self._readers = _Group("kv-read", num_readers, store.block_bytes, clock)
        self._writer = _Group("kv-write", 1, store.block_bytes, clock)
        self._said_stalled = False
        self._is_closed = False

    def find(self, transfer: Transfer, *, seeks: bool = False) -> None:
        """Asks how many of the first keys the store has, or lacks if it `seeks` one, before the
        reads that have not begun."""
        self._readers.submit(partial(self._find, transfer, seeks), is_urgent=True)

    def read(self, transfer: Transfer) -> None:
        """Brings each key's block from the store into the pool."""
        for index in range(len(transfer.keys)):
            self._readers.submit(partial(self._read, transfer, index))

    def write(self, transfer: Transfer, tenant: bytes) -> None:
        """Writes blocks of the pool to the store, where they count against a tenant's share."""
        for index in range(len(transfer.keys)):
            self._writer.submit(partial(self._write, transfer, index, tenant))

    def clear(
        self, transfer: Transfer, tenant: bytes | None, mark: ClearMark | None = None
    ) -> None:
        """Removes a tenant's blocks, or all, after the writes that were asked for before."""
        job = partial(self._clear, transfer, tenant, mark)
        self._writer.submit(job, more_s=CLEAR_STALL_S - self._stall_s)

    def remove(self, key: bytes) -> None:
        """Removes a block from the store, which says nothing of it."""
        self._writer.submit(partial(self._remove, key))

    def usage(self) -> StoreUsage:
        """Returns what the store holds; safe from any thread."""
        return self.store.usage()

    @property
    def is_open(self) -> bool:
        """False while the store finds and keeps nothing yet."""
        return self.store.is_open

    def check_answers(self) -> bool:
        """Says whether the store answers, and logs when that has changed.

        It does not while a call takes longer than `stall_s`, or a clear longer than
        `CLEAR_STALL_S`, and after `close`.
        """
        oldest = min(self._readers.oldest_start, self._writer.oldest_start)
        is_stalled = self._clock() - oldest > self._stall_s
        if is_stalled and not self._said_stalled:
            logger.error(
                "the KV store has not answered for %.0f s; until it does, tokens are computed",
                self._stall_s,
            )
        elif self._said_stalled and not is_stalled:
            logger.warning("the KV store answers again")
        self._said_stalled = is_stalled
        return not (is_stalled or self._is_closed)

    def close(self, *, wait_s: float = 0.0) -> bool:
        """Drops the jobs that have not begun, and closes the store.

        The threads end when their calls return; returns whether they have, after `wait_s` at most.
        """
        self._is_closed = True
        ends_at = time.monotonic() + wait_s
        groups = (self._readers, self._writer)
        for group in groups:
            group.close()
        have_ended = [group.join(ends_at) for group in groups]
        self.store.close()
        return all(have_ended)

    def _find(self, transfer: Transfer, seeks: bool, buffer: memoryview) -> None:
        with _Failing(transfer):
            if not transfer.begin(0):
                return
            if not seeks:
                transfer.found(self.store.find(transfer.keys))
                return
            found = (index for index, key in enumerate(transfer.keys) if self.store.find([key]))
            transfer.found(next(found, len(transfer.keys)))

    def _read(self, transfer: Transfer, index: int, buffer: memoryview) -> None:
        with _Failing(transfer):
            if not transfer.begin(index):
                return
            if self.store.read(transfer.keys[index], buffer):
                transfer.copy_in(index, buffer)
            else:
                transfer.miss(index)

    def _write(self, transfer: Transfer, index: int, tenant: bytes, buffer: memoryview) -> None:
        with _Failing(transfer):
            if not transfer.begin(index) or not transfer.copy_out(index, buffer):
                return
            if self.store.write(transfer.keys[index], buffer, tenant):
                if index == len(transfer.keys) - 1:
                    self.store.find(transfer.keys)  # uses the first one last, to be evicted last
                transfer.kept(index, len(buffer))
            else:
                transfer.miss(index)

    def _clear(
        self, transfer: Transfer, tenant: bytes | None, mark: ClearMark | None, buffer: memoryview
    ) -> None:
        with _Failing(transfer):
            transfer.begin(0)
            # Even if it was cancelled: what is cleared must not return.
            self.store.clear(tenant, mark)
            transfer.end()

    def _remove(self, key: bytes, buffer: memoryview) -> None:
        with suppress(StoreError):  # which the store has counted and logged
            self.store.remove(key)


def no_store() -> StoreThreads:
    """Returns the store of a worker that announces none: it keeps nothing, and has no thread."""
    return StoreThreads(MemoryStore(block_bytes=0, num_blocks=0))


class _Failing:
    """Ends a transfer by the error that is raised within; the thread goes on."""

    def __init__(self, transfer: Transfer) -> None:
        self._transfer = transfer

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if error is None:
            return False
        if not isinstance(error, StoreError):  # a mistake of ours, or of a store that someone added
            logger.error("a call to the KV store failed", exc_info=error)
        self._transfer.end(str(error) or type(error).__name__)
        return True


class _Group:
    """Threads that take jobs from one queue; started by the first job."""

    def __init__(
        self, name: str, num_threads: int, block_bytes: int, clock: Callable[[], float]
    ) -> None:
        self._block_bytes = block_bytes
        self._clock = clock
        self._urgent: deque[tuple[Job, float]] = deque()
        self._jobs: deque[tuple[Job, float]] = deque()
        self._changed = threading.Condition()
        self._starts: dict[int, float] = {}
        """Time from which the job of a thread counts as begun, by the thread's number."""
        self._is_closed = False
        self._threads = [
            threading.Thread(target=self._run, args=(i,), name=f"{name}-{i}", daemon=True)
            for i in range(num_threads)
        ]
        self._is_started = False

    @property
    def oldest_start(self) -> float:
        """Time at which the oldest job that has not ended began; infinite if there is none."""
        with self._changed:
            return min(self._starts.values(), default=float("inf"))

    def submit(self, job: Job, *, is_urgent: bool = False, more_s: float = 0.0) -> None:
        """Queues a job, which counts as begun `more_s` seconds later than it is."""
        with self._changed:
            if self._is_closed:
                return
            self._start()
            (self._urgent if is_urgent else self._jobs).append((job, more_s))
            self._changed.notify()

    def close(self) -> None:
        with self._changed:
            self._is_closed = True
            self._urgent.clear()
            self._jobs.clear()
            self._changed.notify_all()

    def join(self, ends_at: float) -> bool:
        """Waits for the threads until `ends_at`; returns whether all have ended."""
        if not self._is_started:
            return True
        for thread in self._threads:
            thread.join(max(0.0, ends_at - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _start(self) -> None:
        if not self._is_started:
            self._is_started = True
            for thread in self._threads:
                thread.start()

    def _run(self, number: int) -> None:
        with mmap.mmap(-1, self._block_bytes) as pages, memoryview(pages) as buffer:
            while (job := self._next(number)) is not None:
                job(buffer)
                del job  # it may hold the pools of a lease that has ended
                with self._changed:
                    del self._starts[number]

    def _next(self, number: int) -> Job | None:
        with self._changed:
            self._changed.wait_for(lambda: self._urgent or self._jobs or self._is_closed)
            if self._is_closed:
                return None
            job, more_s = (self._urgent or self._jobs).popleft()
            self._starts[number] = self._clock() + more_s
            return job

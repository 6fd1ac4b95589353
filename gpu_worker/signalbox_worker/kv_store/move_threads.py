"""Threads that wait for a store, so that no other thread of the worker does.

A call to a device may take long, and one to a device that has failed may never return. A thread
that is in such a call is left alone, as nothing can end it; until it returns, the store counts as
stalled, and nothing more is asked of it. The threads are daemons, so that they do not keep the
process from leaving.
"""

import logging
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable

logger = logging.getLogger(__name__)

NUM_READERS = 4
"""Reads under way at once: an NVMe device is slow with one."""
STALL_S = 10.0
"""A call that takes longer means that the store does not answer."""
CLEAR_STALL_S = 300.0
"""The same of a clear, which may be of ten million blocks."""

Job = Callable[[memoryview], None]
"""Called with the thread's own buffer of `block_bytes` bytes, page-aligned; must not raise."""


class MoveThreads:
    """Threads of one store: some for lookups and reads, and one that writes, in order."""

    def __init__(
        self,
        *,
        block_bytes: int,
        num_readers: int = NUM_READERS,
        stall_s: float = STALL_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._stall_s = stall_s
        self._clock = clock
        self._readers = _Group("kv-read", num_readers, block_bytes, clock)
        self._writer = _Group("kv-write", 1, block_bytes, clock)
        self._said_stalled = False
        self._is_closed = False

    def look_up(self, job: Job) -> None:
        """Queues a short job, which goes before the reads that have not begun."""
        self._readers.submit(job, is_urgent=True)

    def read(self, job: Job) -> None:
        self._readers.submit(job)

    def write(self, job: Job) -> None:
        """Queues a job that changes the store; one runs at a time, in order."""
        self._writer.submit(job)

    def clear(self, job: Job) -> None:
        """Queues a job that clears the store; as `write`, but it may take longer."""
        self._writer.submit(job, more_s=CLEAR_STALL_S - self._stall_s)

    @property
    def answer(self) -> bool:
        """False while a call to the store takes longer than `stall_s`, or a clear longer than
        `CLEAR_STALL_S`, which the log says, and after `close`."""
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
        """Drops the jobs that have not begun; the threads end when their calls return.

        Returns whether they have, after `wait_s` at most.
        """
        self._is_closed = True
        ends_at = time.monotonic() + wait_s
        groups = (self._readers, self._writer)
        for group in groups:
            group.close()
        return all(group.join(ends_at) for group in groups)


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

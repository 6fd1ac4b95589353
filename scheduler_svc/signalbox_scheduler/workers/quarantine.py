"""Counts the failures of each worker, and how long one that fails again and again has to pause.

A worker is known by its address, which a supervisor that starts it again keeps. All that this
decides is when a worker may join. No plan depends on it, and a joining is on record, so the clock
is not that of the recording, which stands still while nothing is recorded.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import NamedTuple

from signalbox_rpc.metrics.sample import Sample, counter
from signalbox_scheduler.requests.suspicion import Loss

FORGET_S = 600.0
"""Seconds for which a failure counts: a worker that fails more rarely is not kept out for it."""

FIRST_PAUSE_S = 1.0
"""Pause after the second failure; each further one doubles it. The first one costs none, since any
process may be killed once, and since the requests in flight may be the cause."""

MAX_RECORDS = 1024
"""Workers whose failures are kept: as many as a cluster has, or its workers' addresses of ten
minutes. The one whose last failure is the oldest is forgotten first."""

MAX_FAILURES = 32
"""Failures of a worker that are counted; its pause is the longest one long before."""


class Quarantine(NamedTuple):
    """A worker that may not join for a while."""

    worker: str
    num_failures: int
    pause_s: float
    left_s: float


class WorkerRecords:
    """The failures of workers that are not forgotten.

    Args:
        max_pause_s: longest quarantine; 0 lets every worker join at once.
    """

    def __init__(
        self, *, max_pause_s: float = 0.0, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.num_failures = 0
        """Failures of all workers since the scheduler started, forgiven ones included."""
        self._max_pause_s = max_pause_s
        self._clock = clock
        self._failures: OrderedDict[str, list[Loss]] = OrderedDict()

    def samples(self) -> Iterator[Sample]:
        yield counter(
            "worker_failures",
            "Losses of workers that no request caused by itself, and findings that suspect them.",
            self.num_failures,
        )

    @property
    def num_workers(self) -> int:
        return len(self._failures)

    def loss_of(self, worker: str) -> Loss:
        """Returns the loss of a worker now, which is on no record yet."""
        return Loss(worker, self._clock())

    def count(self, loss: Loss) -> None:
        """Puts a loss on its worker's record."""
        self.num_failures += 1
        failures = self._failures.setdefault(loss.worker, [])
        failures.append(loss)
        del failures[:-MAX_FAILURES]
        self._failures.move_to_end(loss.worker)
        if len(self._failures) > MAX_RECORDS:
            self._failures.popitem(last=False)

    def forgive(self, loss: Loss) -> None:
        """Takes a loss off the record again: a request was the cause. A no-op without it."""
        failures = self._failures.get(loss.worker, [])
        if loss in failures:
            failures.remove(loss)
        if not failures:
            self._failures.pop(loss.worker, None)

    def num_failures_of(self, worker: str) -> int:
        """Returns how many failures of a worker count."""
        now, failures = self._clock(), self._failures.get(worker, [])
        return sum(now - loss.at < FORGET_S for loss in failures)

    def quarantine(self, worker: str) -> Quarantine | None:
        """Returns what keeps a worker from joining; None if nothing does."""
        num_failures = self.num_failures_of(worker)
        if num_failures < 2:
            return None
        pause_s = min(self._max_pause_s, FIRST_PAUSE_S * 2.0 ** (num_failures - 2))
        left_s = self._failures[worker][-1].at + pause_s - self._clock()
        return Quarantine(worker, num_failures, pause_s, left_s) if left_s > 0 else None

    def quarantined(self) -> Iterator[Quarantine]:
        """Yields the workers that may not join now, in the order of their last failures."""
        for worker in self._failures:
            if (quarantine := self.quarantine(worker)) is not None:
                yield quarantine

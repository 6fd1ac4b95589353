"""Workers that start and have not registered: what each reports, for errors."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from signalbox_contract.errors import ResourceExhausted
from signalbox_contract.startup import StartupProgress

MAX_REPORTS = 1024
"""Streams of reports at a time, those without a report included: more workers than ever start at
once. Which of them has come furthest is looked for with each error that says so."""


@dataclass(slots=True, eq=False)
class StartingWorker:
    """One worker's last report."""

    progress: StartupProgress
    since: float
    """Seconds on the clock when its phase began."""


class StartingWorkers:
    """The open startup reports, in the order in which they came."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._workers: list[StartingWorker] = []
        self._num_reports = 0

    @contextmanager
    def reporting(self) -> Iterator[None]:
        """Holds the place of one worker's reports. Raises ResourceExhausted if all are taken."""
        if self._num_reports >= MAX_REPORTS:
            raise ResourceExhausted(f"{MAX_REPORTS} workers report their start already")
        self._num_reports += 1
        try:
            yield
        finally:
            self._num_reports -= 1

    def add(self, progress: StartupProgress) -> StartingWorker:
        """Records a worker's first report; `remove` it when the reports end."""
        worker = StartingWorker(progress, self._clock())
        self._workers.append(worker)
        return worker

    def update(self, worker: StartingWorker, progress: StartupProgress) -> None:
        """Records a later report; another phase begins to count its time anew."""
        if progress.phase is not worker.progress.phase:
            worker.since = self._clock()
        worker.progress = progress

    def remove(self, worker: StartingWorker) -> None:
        """Forgets a worker: it registers now, or its process has ended."""
        self._workers.remove(worker)

    def phases(self) -> list[str]:
        """Returns what each worker does at the moment."""
        return [str(worker.progress) for worker in self._workers]

    def describe(self) -> str:
        """Returns what the worker that has come furthest does; "" if none starts.

        It has neither names nor addresses of workers, since clients of the router read it.
        """
        if not self._workers:
            return ""
        first = max(self._workers, key=lambda one: one.progress.phase)
        if (count := len(self._workers)) == 1:
            subject = "a worker is"
        else:
            subject = f"{count} workers start; the first is"
        return f"{subject} {first.progress} ({self._clock() - first.since:.0f} s)"

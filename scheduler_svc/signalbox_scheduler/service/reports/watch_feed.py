"""Makes frames of a cluster while somebody watches it, ten times a second at most.

One difference is made for all watchers. What the frames cost is measured, and the interval follows
it, so that they take a hundredth of a core at most; without a watcher nothing runs and nothing is
observed.
"""

import asyncio
import itertools
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from signalbox_contract.errors import Internal
from signalbox_protos.scheduler.v1 import watch_pb2 as pb
from signalbox_rpc.limits.watchers import Watcher, Watchers
from signalbox_scheduler.service.reports.insight_codec import nanoseconds
from signalbox_scheduler.service.reports.worker_picture import WorkerPicture
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop

logger = logging.getLogger(__name__)

FRAME_S = 0.1
MAX_SHARE = 0.01
"""Part of a core that making frames may take."""
FULL_S = 1.0
"""Seconds between two full pictures for a watcher."""
HERE = ""
"""The one source of frames."""


class WatchFeed:
    """The watchers of a scheduler, and what they have been told."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._watchers = Watchers[pb.Frame]()
        self._full_at: dict[Watcher[pb.Frame], float] = {}
        self._making: asyncio.Task[None] | None = None
        self._numbers = itertools.count(1)
        self._workers: dict[StepLoop, WorkerPicture] = {}
        self._num_waiting = -1
        self._starting: list[str] = []

    @contextmanager
    def joined(self) -> Iterator[Watcher[pb.Frame]]:
        """Adds a watcher for as long as the context lasts. Raises ResourceExhausted."""
        with self._watchers.joined() as watcher:
            self._full_at[watcher] = -math.inf
            if self._making is None:
                self._making = asyncio.create_task(self._make(), name="frames")
            try:
                yield watcher
            finally:
                del self._full_at[watcher]
                if not self._full_at:
                    self._stop()

    def _stop(self) -> None:
        if self._making is not None:
            self._making.cancel()
            self._making = None
        while self._workers:
            self._workers.popitem()[1].close()
        self._num_waiting, self._starting = -1, []

    async def _make(self) -> None:
        try:
            while True:
                before = time.thread_time()
                self.send_frame(time.monotonic())
                cost_s = time.thread_time() - before
                await asyncio.sleep(max(FRAME_S, cost_s / MAX_SHARE))
        except Exception:
            logger.exception("no frame could be made")
            self._watchers.end(Internal("no frame could be made; the scheduler's log says why"))

    def send_frame(self, now: float) -> None:
        """Gives each watcher the difference since the last call, or the full picture it needs."""
        frame, full = self._difference(now), None
        for watcher in self._watchers:
            if watcher.follows(HERE):
                if frame is not None:
                    watcher.put(HERE, frame)
            elif now - self._full_at[watcher] >= FULL_S:
                full = full or self._full(now)
                watcher.put(HERE, full, is_full=True)
                self._full_at[watcher] = now

    def _difference(self, now: float) -> pb.Frame | None:
        frame = pb.Frame()
        loops = self._cluster.step_loops
        for loop in self._workers.keys() - set(loops):
            worker = self._workers.pop(loop)
            worker.close()
            frame.left_workers.append(worker.number)
        for loop in loops:
            if (picture := self._workers.get(loop)) is None:
                picture = WorkerPicture(next(self._numbers), loop.scheduler)
                self._workers[loop] = picture
            if (changed := picture.difference(self._cluster.roles.of(loop))) is not None:
                frame.workers.append(changed)
        if (num_waiting := len(self._cluster.admission)) != self._num_waiting:
            frame.num_waiting = self._num_waiting = num_waiting
        if (starting := self._cluster.starting_workers.phases()) != self._starting:
            self._starting = starting
            frame.starting.CopyFrom(pb.StartingWorkers(phases=starting))
        if not frame.ListFields():
            return None
        frame.at_ns = nanoseconds(now)
        return frame

    def _full(self, now: float) -> pb.Frame:
        return pb.Frame(
            at_ns=nanoseconds(now),
            is_full=True,
            num_waiting=self._num_waiting,
            starting=pb.StartingWorkers(phases=self._starting),
            workers=[worker.full() for worker in self._workers.values()],
        )

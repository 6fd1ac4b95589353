"""Sends frames of a cluster while a client watches it, ten a second at most.

One difference is made for all watchers. What the frames cost is measured, and the interval follows
it, so that they take a hundredth of a core at most; without a watcher nothing runs and nothing is
observed.
"""

import asyncio
import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from signalbox_contract.errors import Internal
from signalbox_rpc.limits.watchers import Watcher, Watchers
from signalbox_scheduler.service.reports.frame_codec import ClusterPicture, Frame
from signalbox_scheduler.workers.cluster import Cluster

logger = logging.getLogger(__name__)

FRAME_S = 0.1
MAX_SHARE = 0.01
"""Part of a core that making frames may take."""
FULL_S = 1.0
"""Seconds between two full pictures for a watcher."""
HERE = ""
"""The one source of frames."""


class WatchFeed:
    """The watchers of a scheduler."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._watchers = Watchers[Frame]()
        self._full_at: dict[Watcher[Frame], float] = {}
        """Time of the last full picture for each watcher."""
        self._asked: set[Watcher[Frame]] = set()
        self._picture: ClusterPicture | None = None
        self._sending: asyncio.Task[None] | None = None

    @contextmanager
    def joined(self) -> Iterator[Watcher[Frame]]:
        """Adds a watcher for as long as the context lasts. Raises ResourceExhausted."""
        with self._watchers.joined() as watcher:
            self._full_at[watcher] = -math.inf
            if self._picture is None:
                self._picture = ClusterPicture(self._cluster)
                self._sending = asyncio.create_task(self._send(self._picture), name="frames")
            try:
                yield watcher
            finally:
                del self._full_at[watcher]
                self._asked.discard(watcher)
                if not self._full_at:
                    self._stop()

    def ask(self, watcher: Watcher[Frame]) -> None:
        """Lets a watcher get a full picture; until that is due it gets differences as before."""
        self._asked.add(watcher)

    def _stop(self) -> None:
        assert self._sending is not None and self._picture is not None, "there is no watcher"
        self._sending.cancel()
        self._picture.close()
        self._sending = self._picture = None

    async def _send(self, picture: ClusterPicture) -> None:
        try:
            while True:
                before = time.thread_time()
                self.send_frame(picture, time.monotonic())
                cost_s = time.thread_time() - before
                await asyncio.sleep(max(FRAME_S, cost_s / MAX_SHARE))
        except Exception:
            logger.exception("no frame could be made")
            self._watchers.end(Internal("no frame could be made; the scheduler's log says why"))

    def send_frame(self, picture: ClusterPicture, now: float) -> None:
        """Gives each watcher the difference since the last call, or the full picture it needs."""
        frame, full = picture.difference(now), None
        for watcher in self._watchers:
            is_due = now - self._full_at[watcher] >= FULL_S
            if is_due and (watcher in self._asked or not watcher.follows(HERE)):
                full = full or picture.full(now)
                watcher.put(HERE, full, is_full=True)
                self._full_at[watcher] = now
                self._asked.discard(watcher)
            elif frame is not None:
                watcher.put(HERE, frame)

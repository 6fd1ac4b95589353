"""Leaves a store alone that does not answer, and asks again after a while."""

import logging
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
"""Time for which nothing is asked after a call that failed; doubled by each that fails then."""
MAX_PAUSE_S = 30.0


class Bypass:
    """Says whether a store may be asked; safe from several threads."""

    def __init__(self, place: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._pause_s = FIRST_PAUSE_S
        self._ask_at: float | None = None
        """When one call may try again; None while the store answers."""

    def admits(self) -> bool:
        """Returns whether a call may be made; after a pause it is one that tries."""
        with self._lock:
            if self._ask_at is None:
                return True
            if self._clock() < self._ask_at:
                return False
            self._ask_at = self._clock() + self._pause_s
            return True

    def succeed(self) -> None:
        with self._lock:
            if self._ask_at is not None:
                logger.warning("the KV store %s answers again", self._place)
            self._ask_at, self._pause_s = None, FIRST_PAUSE_S

    def fail(self, reason: str) -> None:
        with self._lock:
            if self._ask_at is None:
                logger.error(
                    "the KV store %s is bypassed, and tokens are computed, until it answers: %s",
                    self._place,
                    reason,
                )
            else:
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._ask_at = self._clock() + self._pause_s

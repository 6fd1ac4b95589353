"""Leaves a store alone that does not answer, and asks again after a while."""

import logging
import math
import threading
import time
from collections.abc import Callable

logger = logging.getLogger(__name__)

FIRST_PAUSE_S = 1.0
"""Time for which nothing is asked after a call that failed; doubled by each that fails then, or
within `MAX_PAUSE_S` of an answer: a server that refuses lookups may take writes."""
MAX_PAUSE_S = 30.0


class Bypass:
    """Says whether a store may be asked; safe from several threads.

    A call that began before the last failure says nothing any more: it neither ends the bypass nor
    makes the pause longer.
    """

    def __init__(self, place: str, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._place = place
        self._clock = clock
        self._lock = threading.Lock()
        self._num_failures = 0
        self._pause_s = FIRST_PAUSE_S
        self._ask_at: float | None = None
        """Time from which one call may try again; None while the store answers."""
        self._answered_at = -math.inf
        """Time at which the last bypass ended."""

    def begin(self, *, in_pause: bool = False) -> int | None:
        """Returns a number for the end of a call; None if the store is not to be asked.

        After a pause one call tries.

        Args:
            in_pause: ask in any case, as for an operator.
        """
        with self._lock:
            if self._ask_at is not None:
                if self._clock() < self._ask_at and not in_pause:
                    return None
                self._ask_at = self._clock() + self._pause_s
            return self._num_failures

    def succeed(self, begun: int) -> None:
        with self._lock:
            if self._ask_at is not None and begun == self._num_failures:
                logger.warning("the KV store %s answers again", self._place)
                self._ask_at, self._answered_at = None, self._clock()

    def spare(self, begun: int) -> None:
        """Says that a call asked the store nothing: another one may try instead."""
        with self._lock:
            if self._ask_at is not None and begun == self._num_failures:
                self._ask_at = min(self._ask_at, self._clock())

    def fail(self, begun: int, reason: str) -> None:
        with self._lock:
            if begun != self._num_failures:
                return
            self._num_failures += 1
            now = self._clock()
            if self._ask_at is None:
                logger.error(
                    "the KV store %s is bypassed, and tokens are computed, until it answers: %s",
                    self._place,
                    reason,
                )
            if self._ask_at is None and now > self._answered_at + MAX_PAUSE_S:
                self._pause_s = FIRST_PAUSE_S
            else:
                self._pause_s = min(2 * self._pause_s, MAX_PAUSE_S)
            self._ask_at = now + self._pause_s

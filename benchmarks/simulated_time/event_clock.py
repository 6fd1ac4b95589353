"""Time that passes from one event to the next, so that a run takes no longer than its Python."""

import heapq
import itertools
from collections.abc import Callable


class EventClock:
    """Calls what is due in order of time; what is due at the same time as it came."""

    def __init__(self) -> None:
        self.now = 0.0
        """Simulated seconds."""
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def __call__(self) -> float:
        return self.now

    def call_at(self, when: float, call: Callable[[], None]) -> None:
        """Calls at a time; at once, after what is due now, if that has passed."""
        heapq.heappush(self._due, (max(when, self.now), next(self._numbers), call))

    def run(self, *, until: float) -> None:
        """Lets time pass until nothing is due, or until a time."""
        while self._due and self._due[0][0] <= until:
            self.now, _, call = heapq.heappop(self._due)
            call()
        if self._due:
            self.now = until

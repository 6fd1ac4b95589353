"""Measures asynchronous swaps, for the scheduler's choice between swap and recompute.

A step is answered before its copies may have ended. So copies that are under way are counted by the
rate of the last ones that have; only the very first are waited for.
"""

from collections import deque
from typing import NamedTuple

from signalbox_worker.device.streams import Event


class _Copy(NamedTuple):
    begin: Event
    end: Event
    num_bytes: int


class CopyClock:
    """Times the copies of one stream."""

    def __init__(self) -> None:
        self._under_way: deque[_Copy] = deque()
        self._ns_per_byte: float | None = None
        self._new_bytes = 0

    def add(self, begin: Event, end: Event, *, num_bytes: int) -> None:
        """Records a copy between two events; one that is done already counts in its call's time."""
        if not end.is_done:
            self._under_way.append(_Copy(begin, end, num_bytes))
            self._new_bytes += num_bytes

    def pop_ns(self) -> int:
        """Returns the nanoseconds of the copies recorded since the last call."""
        if self._under_way and self._ns_per_byte is None:
            self._under_way[0].end.wait()
        while self._under_way and self._under_way[0].end.is_done:
            done = self._under_way.popleft()
            self._ns_per_byte = done.end.ns_since(done.begin) / done.num_bytes
        num_bytes, self._new_bytes = self._new_bytes, 0
        return round(num_bytes * (self._ns_per_byte or 0.0))

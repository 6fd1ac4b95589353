"""Bounds what is written to a disk in a day, since flash wears out.

The scheduler bounds what is written in a second; see `StoreCapacity.max_write_bytes_per_s`.
"""

import time
from collections.abc import Callable

SECONDS_PER_DAY = 86400


class WriteLimit:
    """Counts bytes; used by one thread at a time.

    Args:
        bytes_per_day: what may be written in a day of UTC.
        clock: seconds since the epoch.
    """

    def __init__(self, *, bytes_per_day: float, clock: Callable[[], float] = time.time) -> None:
        self._bytes_per_day = bytes_per_day
        self._clock = clock
        self.day = int(clock() // SECONDS_PER_DAY)
        self.written_today = 0

    def continue_day(self, num_bytes: int) -> None:
        """Counts what was written on this day before."""
        self.written_today += num_bytes

    def take(self, num_bytes: int) -> bool:
        """Counts bytes that are to be written; returns False if they may not be."""
        if (day := int(self._clock() // SECONDS_PER_DAY)) != self.day:
            self.day, self.written_today = day, 0
        if self.written_today + num_bytes > self._bytes_per_day:
            return False
        self.written_today += num_bytes
        return True

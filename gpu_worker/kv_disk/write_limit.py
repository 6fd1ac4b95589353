"""Bounds what is written to a disk, by second and by day: flash wears out, and reads wait."""

import time
from collections.abc import Callable

_BURST_S = 4.0
"""Seconds for which writes that were not made may be made later."""
SECONDS_PER_DAY = 86400


class WriteLimit:
    """Counts bytes; used by one thread at a time.

    Args:
        bytes_per_s: what may be written on average over seconds.
        bytes_per_day: what may be written in a day of UTC.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        *,
        bytes_per_s: float,
        bytes_per_day: float,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._bytes_per_s, self._bytes_per_day = bytes_per_s, bytes_per_day
        self._clock = clock
        self._left = bytes_per_s * _BURST_S
        self._at = clock()
        self.day = int(self._at // SECONDS_PER_DAY)
        self.written_today = 0
        self.num_refused = 0

    def continue_day(self, num_bytes: int) -> None:
        """Counts what was written on this day before."""
        self.written_today += num_bytes

    def take(self, num_bytes: int) -> bool:
        """Counts bytes that are to be written; returns False if they may not be."""
        now = self._clock()
        if (day := int(now // SECONDS_PER_DAY)) != self.day:
            self.day, self.written_today = day, 0
        most = max(self._bytes_per_s * _BURST_S, num_bytes)
        self._left = min(most, self._left + max(0.0, now - self._at) * self._bytes_per_s)
        self._at = now
        allowed = num_bytes <= self._left and (
            self.written_today + num_bytes <= self._bytes_per_day
        )
        if allowed:
            self._left -= num_bytes
            self.written_today += num_bytes
        else:
            self.num_refused += 1
        return allowed

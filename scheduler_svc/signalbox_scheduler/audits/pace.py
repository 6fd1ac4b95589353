"""Limits the rows of an audit's step, so that a new request does not wait long for it, and the
share of a worker's time that audits take."""

import math
from dataclasses import dataclass

MAX_STEP_S = 0.05
"""Longest time that a request may wait for a step of an audit."""
AIM_S = 0.025
"""Time that a step should take: half of the limit, since some take longer than expected."""
FIRST_ROWS, MOST_FIRST_ROWS = 16, 64
"""Rows of the first step if the worker's rate is unknown, and the most if it is known."""
MAX_SLOW_STEPS = 3
"""Consecutive steps of one row beyond `MAX_STEP_S` after which the worker is too slow."""
SLOW_S = 600.0
"""Seconds after which a worker that was too slow is tried again."""
MAX_CREDIT_S = 5.0
"""Most seconds that are saved while there is nothing to audit."""


@dataclass(slots=True)
class Pace:
    """Rows of one worker's next step."""

    most_rows: int
    _num_slow: int = 0
    _slow_until: float = -math.inf

    @classmethod
    def of_rate(cls, tokens_per_s: float) -> "Pace":
        """Begins with the rate at which a worker computes prompts; 0 if it is unknown."""
        rows = int(AIM_S * tokens_per_s) if tokens_per_s else FIRST_ROWS
        return cls(min(max(1, rows), MOST_FIRST_ROWS))

    def observe(self, num_rows: int, seconds: float, now: float) -> None:
        """Adjusts the rows to the time of an answered step."""
        self._num_slow = self._num_slow + 1 if num_rows == 1 and seconds > MAX_STEP_S else 0
        if self._num_slow >= MAX_SLOW_STEPS:
            self._num_slow, self._slow_until = 0, now + SLOW_S
        factor = min(2.0, AIM_S / seconds) if seconds > 0 else 2.0
        if factor < 1 or num_rows == self.most_rows:
            self.most_rows = max(1, int(num_rows * factor))

    def is_too_slow(self, now: float) -> bool:
        """Returns whether steps of one row took too long recently."""
        return now < self._slow_until


@dataclass(slots=True)
class Allowance:
    """Time that one worker's audits may take: a share of all time.

    An audit that has begun runs to its end. If it took more than was saved, the next one waits
    until the difference is earned.
    """

    share: float
    _seconds: float = 0.0
    _followed_at: float | None = None

    def wait_s(self, now: float) -> float:
        """Returns the seconds until an audit may begin."""
        if self._followed_at is not None:
            earned_s = self.share * (now - self._followed_at)
            self._seconds = min(MAX_CREDIT_S, self._seconds + earned_s)
        self._followed_at = now
        return max(0.0, -self._seconds / self.share)

    def spend(self, seconds: float) -> None:
        self._seconds -= seconds

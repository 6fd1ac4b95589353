"""Accounts for the time in which the admission queue did not move, once for all its requests.

What keeps the first of the queue out keeps out all others. So each planning that leaves requests
waiting records one reason, whatever the length of the queue, and so does the first that leaves
none. What a request waited for is the difference between the account when it left and when it came.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple


class WaitReason(Enum):
    """Reason for which the first of the queue waits, named as in explain.proto."""

    NEXT_STEP = auto()
    """Nothing but that the next step is planned."""
    NO_WORKER = auto()
    """A worker that takes it: there is none, or those that there are drain or are too small."""
    TOKENS = auto()
    """Running requests use the token budget of the steps."""
    SEQUENCES = auto()
    """The largest allowed number of sequences runs."""
    BLOCKS = auto()
    """Too few KV blocks are free, or running requests lack some."""
    SWAPPED_FIRST = auto()
    """Swapped requests come in before it."""
    GRAMMAR = auto()
    """A worker that has compiled its structured output."""
    SUSPECT = auto()
    """A request computes alone that was in flight when a worker was lost."""
    LOADING = auto()
    """A prefix that is looked for or fetched; the request is outside the queue then."""


class Wait(NamedTuple):
    """Seconds and number of plannings for which one reason held."""

    reason: WaitReason
    seconds: float
    num_plans: int


def merged(*parts: Iterable[Wait]) -> tuple[Wait, ...]:
    """Returns the sums of waits by reason, the longest first."""
    sums: dict[WaitReason, Wait] = {}
    for wait in itertools.chain(*parts):
        known = sums.get(wait.reason, Wait(wait.reason, 0.0, 0))
        sums[wait.reason] = Wait(
            wait.reason, known.seconds + wait.seconds, known.num_plans + wait.num_plans
        )
    held = [wait for wait in sums.values() if wait.seconds > 0]
    return tuple(sorted(held, key=lambda wait: -wait.seconds))


Account = tuple[tuple[float, int], ...]
"""Seconds and plannings of each reason, in the order of WaitReason."""


@dataclass(slots=True)
class WaitLedger:
    """The account, in which a reason holds from the planning that recorded it to the next one."""

    reason: WaitReason = WaitReason.NEXT_STEP
    """The reason that holds now."""
    _since: float = 0.0
    _seconds: dict[WaitReason, float] = field(
        default_factory=lambda: dict.fromkeys(WaitReason, 0.0)
    )
    _num_plans: dict[WaitReason, int] = field(default_factory=lambda: dict.fromkeys(WaitReason, 0))

    def record(self, reason: WaitReason, now: float) -> None:
        """Records what a planning left the queue waiting for."""
        self._accrue(now)
        self.reason = reason
        self._num_plans[reason] += 1

    def account(self, now: float) -> Account:
        """Returns the account as of now, to be given to `since` later."""
        self._accrue(now)
        return tuple(zip(self._seconds.values(), self._num_plans.values(), strict=True))

    def since(self, start: Account, now: float) -> tuple[Wait, ...]:
        """Returns what the queue has waited for since then, the longest first."""
        waits = [
            Wait(reason, seconds - seconds_then, num_plans - num_plans_then)
            for reason, (seconds, num_plans), (seconds_then, num_plans_then) in zip(
                self._seconds, self.account(now), start, strict=True
            )
        ]
        return merged(waits)

    def _accrue(self, now: float) -> None:
        self._seconds[self.reason] += max(0.0, now - self._since)
        self._since = max(self._since, now)

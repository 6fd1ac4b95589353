"""The accepted requests that no worker takes at the moment, and until when each waits for one.

A worker that was lost may be restarted, or another may join: a request that was accepted is worth
waiting for, within a bound.
"""

from signalbox_scheduler.requests.sequence_group import SequenceGroup


class PlacementDeadlines:
    """A subset of the admission queue.

    Args:
        wait_s: how long a request waits; 0 ends it at once.
    """

    def __init__(self, wait_s: float) -> None:
        self.wait_s = wait_s
        self.until: dict[SequenceGroup, float] = {}
        """Seconds of the scheduler's clock at which each request has waited long enough."""

    def __len__(self) -> int:
        return len(self.until)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self.until

    def add(self, group: SequenceGroup, now: float) -> None:
        """Lets a request wait from now on; a no-op for one that waits already."""
        self.until.setdefault(group, now + self.wait_s)

    def discard(self, group: SequenceGroup) -> None:
        """Says that a request has a worker that takes it, or has ended."""
        self.until.pop(group, None)

    def expired(self, now: float) -> list[SequenceGroup]:
        """Returns those that have waited long enough."""
        return [group for group, until in self.until.items() if until <= now]

"""The queue of requests that no worker has taken yet, one for all workers.

A worker with room pulls from it, which balances the load with no estimate of it. A group that is
preempted by recompute, or whose worker is lost, comes back at the place of its arrival.
"""

import bisect
from collections.abc import Callable, Iterator

from scheduler_svc.sequence import SequenceGroup
from scheduler_svc.waits import WaitLedger

Priority = Callable[[SequenceGroup], tuple[float, ...]]


def first_come_first_served(group: SequenceGroup) -> tuple[float, ...]:
    """Orders by arrival; groups of the same instant stay in the order they were added."""
    return (group.times.arrival,)


class AdmissionQueue:
    """Waiting groups in order of priority, least first."""

    def __init__(self, priority: Priority = first_come_first_served) -> None:
        self.priority = priority
        self.waits = WaitLedger()
        self._groups: list[SequenceGroup] = []

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        return iter(self._groups)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self._groups

    @property
    def started(self) -> Iterator[SequenceGroup]:
        """Those that a worker has worked on, which a worker that drains still takes."""
        return (group for group in self._groups if group.has_started)

    def num_ahead(self, group: SequenceGroup) -> int:
        """Returns how many wait before a group that waits."""
        return self._groups.index(group)

    def note_arrival(self, group: SequenceGroup, now: float) -> None:
        """Notes in a group's timeline that it has come to wait here."""
        group.timeline.queued(
            now,
            num_ahead=self.num_ahead(group),
            num_waiting=len(self._groups),
            ledger=self.waits,
        )

    def add(self, group: SequenceGroup) -> None:
        bisect.insort(self._groups, group, key=self.priority)

    def remove(self, group: SequenceGroup) -> None:
        self._groups.remove(group)

"""The requests that have not ended: found by group or id, counted by tenant, ended by deadline."""

import asyncio
import heapq
import itertools
from collections import Counter
from collections.abc import Collection, Iterator

from signalbox_scheduler.requests.sequence_group import SequenceGroup

MAX_STALE_DEADLINES = 64
"""Deadlines kept of requests that have ended, beyond the number of live requests; each keeps a
prompt in memory."""


class LiveRequests:
    """A request is in from when it is queued until its router is told that it has ended."""

    def __init__(self) -> None:
        self._groups: dict[SequenceGroup, None] = {}
        self.exist = asyncio.Event()
        """Set while a request lives."""
        self._by_id: dict[tuple[str, str], SequenceGroup] = {}  # of a tenant
        self._num_of: Counter[str] = Counter()  # of a tenant
        self.deadlines: list[tuple[float, int, SequenceGroup]] = []
        """A heap of the deadlines; requests that have ended may be in it."""
        self._tiebreak = itertools.count()

    def __len__(self) -> int:
        return len(self._groups)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self._groups

    @property
    def groups(self) -> Collection[SequenceGroup]:
        """The live requests in the order of arrival."""
        return self._groups.keys()

    def find(self, *, tenant: str, request_id: str) -> SequenceGroup | None:
        return self._by_id.get((tenant, request_id))

    def num_of(self, tenant: str) -> int:
        """Returns how many of a tenant's requests live."""
        return self._num_of[tenant]

    def add(self, group: SequenceGroup) -> None:
        """Adds a request whose id no other of its tenant has."""
        self._groups[group] = None
        self.exist.set()
        self._by_id[_id_of(group)] = group
        self._num_of[group.request.tenant] += 1
        if group.deadline is not None:
            heapq.heappush(self.deadlines, (group.deadline, next(self._tiebreak), group))

    def remove(self, group: SequenceGroup) -> None:
        del self._groups[group], self._by_id[_id_of(group)]
        if not self._groups:
            self.exist.clear()
        self._num_of[group.request.tenant] -= 1
        if not self._num_of[group.request.tenant]:
            del self._num_of[group.request.tenant]
        if len(self.deadlines) > 2 * len(self._groups) + MAX_STALE_DEADLINES:
            self.deadlines = [entry for entry in self.deadlines if entry[2] in self._groups]
            heapq.heapify(self.deadlines)

    def expired(self, now: float) -> Iterator[SequenceGroup]:
        """Yields the groups that are out of time, each once; one may have ended meanwhile."""
        while self.deadlines and self.deadlines[0][0] <= now:
            yield heapq.heappop(self.deadlines)[2]

    def check(self, groups: Collection[SequenceGroup]) -> None:
        """Asserts that these groups are those that live, and that they are counted right."""
        assert set(groups) == self._groups.keys(), "a request is lost, or outlives its end"
        assert {_id_of(group) for group in groups} == self._by_id.keys()
        assert Counter(group.request.tenant for group in groups) == self._num_of
        with_deadline = {group for group in groups if group.deadline is not None}
        assert with_deadline <= {group for _, _, group in self.deadlines}


def _id_of(group: SequenceGroup) -> tuple[str, str]:
    return group.request.tenant, group.request_id

"""Flows of waiting requests, and which of them is served next: the one of least virtual time.

A flow's virtual time rises by the cost of what it is served. One that begins to wait is lifted to
the least of those that wait, so that no flow saves up service that was not asked for (Sheng et al.,
OSDI 2024, section 4). New flows could then overtake an old one for ever;
so when one has not had its turn for long, newcomers are lifted to its virtual time instead.
"""

import bisect
import heapq
import itertools
import operator
from collections.abc import Iterator
from dataclasses import dataclass, field

from signalbox_scheduler.requests.sequence_group import SequenceGroup

PATIENCE = 2
"""Rounds in which each flow could have had a turn, after which a flow has waited for long."""
MAX_RESTING = 4096
"""Virtual times kept of flows that do not wait: of the flows that are ahead the most. There may be
twice as many before the others are dropped."""

rank_of = operator.attrgetter("rank")
Entry = tuple[float, float, int, "Flow"]
"""Virtual time, rank of the first group, a tiebreak, the flow."""


@dataclass(slots=True, eq=False)
class Flow:
    """Requests of which the first waits for all before the others; never empty."""

    name: str
    turn: int
    """Number of all turns when the flow last had one, or began to wait."""
    groups: list[SequenceGroup] = field(default_factory=list)
    entry: Entry | None = None
    """The one of its entries in the heap that counts."""


class Flows:
    """The flows that wait, and the virtual times of all. Each group's `flow` and `rank` are set."""

    def __init__(self) -> None:
        self._flows: dict[str, Flow] = {}  # whose turn is longest ago first
        self._heap: list[Entry] = []  # least first; what has changed since is found at the top
        self._virtual_times: dict[str, float] = {}
        self._last = ""  # flow that was the last to cease waiting
        self._num_turns = 0
        self._max_resting = MAX_RESTING
        self._tiebreak = itertools.count()

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yields all groups, flow by flow."""
        return itertools.chain.from_iterable(flow.groups for flow in self._flows.values())

    def add(self, group: SequenceGroup) -> None:
        """Puts a group at its place; behind those of the same rank."""
        flow = self._flows.get(group.flow)
        if flow is None:
            self._lift(group.flow)
            flow = self._flows[group.flow] = Flow(group.flow, self._num_turns)
        bisect.insort(flow.groups, group, key=rank_of)
        if flow.groups[0] is group:
            self._push(flow)

    def remove(self, group: SequenceGroup) -> None:
        """Takes a group out that has no turn: it ends."""
        flow = self._flows[group.flow]
        del flow.groups[_index(flow.groups, group)]
        if not flow.groups:
            self._last = flow.name
            flow.entry = None
            del self._flows[flow.name]

    def pop(self, group: SequenceGroup) -> None:
        """Takes a group out, which is its flow's turn."""
        self._num_turns += 1
        flow = self._flows.pop(group.flow)
        flow.turn = self._num_turns
        self._flows[flow.name] = flow
        self.remove(group)

    def charge(self, name: str, cost: float) -> None:
        """Moves a flow's virtual time on."""
        if cost > 0:
            self._virtual_times[name] = self.virtual_time(name) + cost

    def virtual_time(self, name: str) -> float:
        return self._virtual_times.get(name, 0.0)

    def first(self) -> SequenceGroup | None:
        """Returns the group that is next; None if none waits."""
        flow = self._least()
        return flow.groups[0] if flow else None

    def in_order(self) -> Iterator[SequenceGroup]:
        """Yields the groups in order; the first costs little, however many flows there are."""
        first = self.first()
        if first is None:
            return
        yield first
        others = heapq.merge(*(flow.groups for flow in self._flows.values()), key=self._place)
        yield from (group for group in others if group is not first)

    def behind(self, group: SequenceGroup, limit: int) -> list[SequenceGroup]:
        """Returns the next groups of the same flow."""
        groups = self._flows[group.flow].groups
        start = _index(groups, group) + 1
        return groups[start : start + limit]

    def num_ahead(self, group: SequenceGroup) -> int:
        """Returns how many would be taken before a group if nothing else came."""
        virtual_time, _ = self._place(group)
        ahead = _index(self._flows[group.flow].groups, group)
        for flow in self._flows.values():
            time = self.virtual_time(flow.name)
            if time < virtual_time:
                ahead += len(flow.groups)
            elif time == virtual_time and flow.name != group.flow:
                ahead += bisect.bisect_left(flow.groups, group.rank, key=rank_of)
        return ahead

    def _place(self, group: SequenceGroup) -> tuple[float, float]:
        return self.virtual_time(group.flow), group.rank

    def _lift(self, name: str) -> None:
        """Brings a flow that begins to wait up to those that do."""
        least = self._least()
        floor = self.virtual_time(least.name if least else self._last)
        self._drop_resting(floor)
        if self._flows:
            longest = next(iter(self._flows.values()))
            if self._num_turns - longest.turn > PATIENCE * len(self._flows):
                floor = max(floor, self.virtual_time(longest.name))
        self._virtual_times[name] = max(floor, self.virtual_time(name))

    def _drop_resting(self, floor: float) -> None:
        """Forgets flows that would be lifted to the floor in any case, or nearly so.

        While some flow always waits, flows that come once each do not raise the floor.
        """
        times = self._virtual_times
        if len(times) <= self._max_resting:
            return
        active = {name for name in (*self._flows, self._last) if name in times}
        resting = (name for name, time in times.items() if time > floor and name not in active)
        kept = active.union(heapq.nlargest(MAX_RESTING, resting, key=times.__getitem__))
        self._virtual_times = {name: time for name, time in times.items() if name in kept}
        self._max_resting = max(MAX_RESTING, 2 * len(kept))

    def _least(self) -> Flow | None:
        """Returns the flow that is next; brings what has changed at the heap's top up to date."""
        while self._heap:
            entry = self._heap[0]
            flow = entry[3]
            if flow.entry is not entry:
                heapq.heappop(self._heap)
            elif entry[:2] == self._place(flow.groups[0]):
                return flow
            else:
                heapq.heappop(self._heap)
                self._push(flow)
        return None

    def _push(self, flow: Flow) -> None:
        """Records a flow's new place; virtual times never fall, so a later one can wait."""
        if len(self._heap) > 4 * len(self._flows) + 64:  # entries that no longer count
            self._heap = [entry for entry in self._heap if entry[3].entry is entry]
            heapq.heapify(self._heap)
        flow.entry = (*self._place(flow.groups[0]), next(self._tiebreak), flow)
        heapq.heappush(self._heap, flow.entry)

    def check(self) -> None:
        """Asserts that groups stand in their flows by rank, and the least flow is next."""
        for name, flow in self._flows.items():
            assert flow.groups, f"flow {name!r} is empty"
            assert {group.flow for group in flow.groups} == {name}
            ranks = [group.rank for group in flow.groups]
            assert ranks == sorted(ranks), f"flow {name!r} is out of order"
        first = self.first()
        if first is not None:
            assert self._place(first) == min(self._place(group) for group in self)


def _index(groups: list[SequenceGroup], group: SequenceGroup) -> int:
    """Returns where a group is. Raises ValueError if it is not there."""
    return groups.index(group, bisect.bisect_left(groups, group.rank, key=rank_of))

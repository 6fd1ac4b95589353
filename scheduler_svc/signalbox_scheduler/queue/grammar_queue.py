"""The waiting groups whose structured output no worker has compiled yet: no worker pulls them.

A worker that is free to compile takes the next constraint: of the payer that has been given the
least CPU time since groups began to wait here, the cheapest. So a payer with many costly ones
delays another by one at most, and the costly ones of a payer delay its cheap ones no more.
"""

import heapq
import itertools
from collections import Counter
from collections.abc import Iterator

from signalbox_contract.structured_output.grammar_cost import GrammarCost
from signalbox_scheduler.requests.sequence_group import SequenceGroup

Constraint = tuple[str, ...]

_Entry = tuple[int, int, Constraint]
"""CPU time to compile it, a tiebreak in order of arrival, the constraint."""


class Parked:
    """A part of the admission queue, and which constraints workers have compiled."""

    def __init__(self) -> None:
        self._groups: dict[Constraint, dict[SequenceGroup, None]] = {}
        self.num_groups = 0
        """Groups that wait here, also `len`."""
        self._heaps: dict[str, list[_Entry]] = {}  # by payer, in order of arrival
        self._spent_ns: Counter[str] = Counter()
        self._tiebreak = itertools.count()
        self._ready: Counter[Constraint] = Counter()
        self._preparing: set[Constraint] = set()

    def __len__(self) -> int:
        return self.num_groups

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yields all groups, constraint by constraint."""
        return itertools.chain.from_iterable(self._groups.values())

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self._groups.get(group.params.structured_output or (), ())

    def holds_back(self, group: SequenceGroup) -> bool:
        """Returns whether a group must wait here, for no worker has what it needs."""
        constraint = group.params.structured_output
        return constraint is not None and not self._ready[constraint]

    def add(self, group: SequenceGroup) -> None:
        constraint = _constraint(group)
        groups = self._groups.setdefault(constraint, {})
        groups[group] = None
        self.num_groups += 1
        if constraint not in self._preparing:
            self._push(group)

    def remove(self, group: SequenceGroup) -> None:
        constraint = _constraint(group)
        groups = self._groups[constraint]
        del groups[group]
        self.num_groups -= 1
        if not groups:
            del self._groups[constraint]
        if not self._groups:
            self._heaps.clear()
            self._spent_ns.clear()

    def next(self) -> SequenceGroup | None:
        """Returns a group of the constraint to compile next; None if all are being compiled."""
        for payer in sorted(self._heaps, key=self._spent_ns.__getitem__):  # stable
            heap = self._heaps[payer]
            while heap:
                constraint = heap[0][2]
                for group in () if constraint in self._preparing else self.of(constraint):
                    if group.payer == payer:
                        return group
                heapq.heappop(heap)
            del self._heaps[payer]
        return None

    def of(self, constraint: Constraint) -> list[SequenceGroup]:
        return list(self._groups.get(constraint, ()))

    def begin(self, group: SequenceGroup) -> None:
        """Records that a worker compiles what a group needs, at the cost of the group's payer."""
        self._preparing.add(_constraint(group))
        if self._groups:
            self._spent_ns[group.payer] += group.params.grammar_cost.cpu_ns

    def end(self, constraint: Constraint, *, is_ready: bool) -> list[SequenceGroup]:
        """Ends a compilation; returns the groups that may continue if it has succeeded."""
        self._preparing.discard(constraint)
        if is_ready:
            self._ready[constraint] += 1
            return self.of(constraint)
        for group in self.of(constraint):
            self._push(group)
        return []

    def forget(self, constraint: Constraint) -> bool:
        """Records that a worker has it no more; returns whether none has."""
        self._ready[constraint] -= 1
        if self._ready[constraint]:
            return False
        del self._ready[constraint]
        return True

    def check(self) -> None:
        """Asserts that each group is here because it must be, and is found."""
        assert self.num_groups == sum(map(len, self._groups.values()))
        assert all(map(self.holds_back, self))
        queued = {entry[2] for heap in self._heaps.values() for entry in heap}
        assert self._groups.keys() <= queued | self._preparing

    def _push(self, group: SequenceGroup) -> None:
        cost: GrammarCost = group.params.grammar_cost
        entry = (cost.cpu_ns, next(self._tiebreak), _constraint(group))
        heapq.heappush(self._heaps.setdefault(group.payer, []), entry)


def _constraint(group: SequenceGroup) -> Constraint:
    constraint = group.params.structured_output
    assert constraint is not None, group.request_id
    return constraint

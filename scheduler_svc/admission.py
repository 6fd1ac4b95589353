"""The queue of requests that no worker has taken yet, one for all workers.

A worker with room pulls from it, which balances the load with no estimate of it. Who comes first is
the policy's to say. A group that is preempted by recompute, or whose worker is lost, comes back at
its old rank. A worker that has too little room for the first in line reserves it: that worker makes
room, and others go on with those behind.
"""

import itertools
import logging
import math
from collections.abc import Iterable, Iterator

from scheduler_svc.flows import Flows, rank_of
from scheduler_svc.policy import FirstComeFirstServed, SchedulingPolicy
from scheduler_svc.sequence import SequenceGroup
from scheduler_svc.waits import WaitLedger

logger = logging.getLogger(__name__)

LOOK_AHEAD = 64
"""Groups that a worker looks at, past those that are too large for it or that another reserved."""


class AdmissionQueue:
    """Waiting groups in the policy's order."""

    def __init__(self, policy: SchedulingPolicy | None = None) -> None:
        self.policy = policy or FirstComeFirstServed()
        self.waits = WaitLedger()
        self.num_prompt_tokens = 0
        """Of those that wait."""
        self._flows = Flows()
        self._groups: set[SequenceGroup] = set()
        self._started: dict[SequenceGroup, None] = {}  # in an order that a replay repeats
        self._unpriced: dict[SequenceGroup, None] = {}
        self._reserved_by: dict[SequenceGroup, object] = {}
        self._reserved: dict[object, SequenceGroup] = {}  # one for a worker

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yields all groups, in order of rank within a flow."""
        return iter(self._flows)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self._groups

    @property
    def candidates(self) -> Iterable[SequenceGroup]:
        """The first in order; an iteration ends with the next change."""
        return itertools.islice(self._flows.in_order(), LOOK_AHEAD)

    @property
    def started(self) -> list[SequenceGroup]:
        """Those that a worker has worked on, which a worker that drains still takes; by rank."""
        return sorted(self._started, key=rank_of)

    def behind(self, group: SequenceGroup, limit: int) -> list[SequenceGroup]:
        """Returns the groups that come next after one, as far as the policy holds them equal."""
        return self._flows.behind(group, limit)

    def num_ahead(self, group: SequenceGroup) -> int:
        """Returns how many wait before a group that waits."""
        return self._flows.num_ahead(group)

    def note_arrival(self, group: SequenceGroup, now: float) -> None:
        """Notes in a group's timeline that it has come to wait here."""
        group.timeline.queued(
            now, num_ahead=self.num_ahead(group), num_waiting=len(self), ledger=self.waits
        )

    def rank(self, group: SequenceGroup) -> None:
        """Gives a new group its place for life. Raises what the policy does."""
        group.flow = self.policy.flow(group)
        if not isinstance(group.flow, str):
            raise TypeError(f"{type(self.policy).__name__}.flow() returned no string")
        group.rank = float(self.policy.rank(group))
        if math.isnan(group.rank):
            raise ValueError(f"{type(self.policy).__name__}.rank() returned NaN")

    def add(self, group: SequenceGroup) -> None:
        if math.isnan(group.rank):
            self.rank(group)
        self._flows.add(group)
        self._groups.add(group)
        self.num_prompt_tokens += group.num_prompt_tokens
        if group.has_started:
            self._started[group] = None

    def remove(self, group: SequenceGroup) -> None:
        """Takes a group out that ends."""
        self._flows.remove(group)
        self._forget(group)

    def take(self, group: SequenceGroup) -> None:
        """Takes a group out that a worker will run."""
        self._flows.take(group)
        self._forget(group)

    def _forget(self, group: SequenceGroup) -> None:
        self._groups.remove(group)
        self._started.pop(group, None)
        self.num_prompt_tokens -= group.num_prompt_tokens
        if (worker := self._reserved_by.pop(group, None)) is not None:
            del self._reserved[worker]

    def charge(
        self,
        flow: str,
        served: Iterable[SequenceGroup] = (),
        *,
        num_prompt_tokens: int = 0,
        num_output_tokens: int = 0,
    ) -> None:
        """Tells the policy what was served, and to whom; see `take_unpriced` if it fails on that.

        Called in the middle of a step, of which the others must not suffer.
        """
        try:
            cost = self.policy.cost(
                flow, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens
            )
            self._flows.charge(flow, float(cost))
        except Exception:
            logger.exception("the scheduling policy fails on the cost of flow %r", flow)
            self._unpriced.update(dict.fromkeys(served))

    def take_unpriced(self) -> list[SequenceGroup]:
        """Returns, once, those that were served what the policy has no cost for; to be ended."""
        if not self._unpriced:
            return []
        unpriced, self._unpriced = list(self._unpriced), {}
        return unpriced

    def reserve(self, group: SequenceGroup, worker: object) -> bool:
        """Lets a worker make room for a group; False if another does so already."""
        if self._reserved_by.get(group, worker) is not worker:
            return False
        self.release(worker)  # it makes room for one at a time
        self._reserved_by[group] = worker
        self._reserved[worker] = group
        return True

    def release(self, worker: object) -> None:
        """Gives back what a worker has reserved."""
        if (group := self._reserved.pop(worker, None)) is not None:
            del self._reserved_by[group]

    def check(self) -> None:
        """Asserts that everybody is in one flow, in order, and what is counted is right."""
        self._flows.check()
        groups = list(self)
        assert len(groups) == len(self._groups)
        assert set(groups) == self._groups
        assert self._started.keys() == {group for group in groups if group.has_started}
        assert self.num_prompt_tokens == sum(group.num_prompt_tokens for group in groups)
        assert self._reserved_by.keys() <= self._groups
        assert {group: worker for worker, group in self._reserved.items()} == self._reserved_by

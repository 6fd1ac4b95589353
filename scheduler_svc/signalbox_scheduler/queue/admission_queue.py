"""The queue of requests that no worker has taken yet, one for all workers.

A worker with room pulls from it, which balances the load with no estimate of it. The policy decides
the order. A group that is preempted by recompute, or whose worker is lost, comes back at
its old rank. A worker that has too little room for the first in line reserves it: that worker makes
room, and others go on with those behind.
"""

import itertools
import logging
import math
from collections import Counter
from collections.abc import Iterable, Iterator

from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.queue.fair_queue import Flows, rank_of
from signalbox_scheduler.queue.grammar_queue import Constraint, Parked
from signalbox_scheduler.queue.policies import FCFS, FirstComeFirstServed, SchedulingPolicy
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.wait_accounting import WaitLedger

logger = logging.getLogger(__name__)

LOOK_AHEAD = 64
"""Groups that a worker looks at, past those that are too large for it or that another reserved."""


class AdmissionQueue:
    """Waiting groups in the policy's order."""

    def __init__(self, policy: SchedulingPolicy = FCFS) -> None:
        self.policy = policy
        self.charges = type(self.policy).cost is not FirstComeFirstServed.cost
        """False if the policy charges nothing for tokens."""
        self.waits = WaitLedger()
        self.num_prompt_tokens = 0
        """Prompt tokens of all waiting groups."""
        self.num_predicted_tokens = 0
        """Tokens of the predictions of all waiting groups."""
        self.adapters: frozenset[str] = frozenset()
        """SHA-256 of the adapters that all workers have; a group of another one waits for it."""
        self.parked = Parked()
        self._flows = Flows()
        self._constraints: Counter[Constraint] = Counter()  # of those in flows
        self.groups: set[SequenceGroup] = set()
        """All groups that wait."""
        self._started: dict[SequenceGroup, None] = {}  # in an order that a replay repeats
        self.suspects: dict[SequenceGroup, None] = {}
        """Groups that compute alone because a worker was lost with them."""
        self.uncharged: dict[SequenceGroup, None] = {}
        """Groups that were served what the policy has no cost for, until `pop_uncharged`."""
        self.prefixes: dict[SequenceGroup, Hold] = {}
        """Blocks of a worker that are kept for groups, until these leave the queue."""
        self._reserved_by: dict[SequenceGroup, object] = {}
        self._reserved: dict[object, SequenceGroup] = {}  # one for a worker

    def has_adapter(self, group: SequenceGroup) -> bool:
        """Returns whether all workers have what the group names; the base model is always there."""
        adapter = group.request.adapter
        return not adapter or adapter in self.adapters

    def __len__(self) -> int:
        return len(self.groups)

    def __iter__(self) -> Iterator[SequenceGroup]:
        """Yields all groups, in order of rank within a flow; those that are parked last."""
        return itertools.chain(self._flows, self.parked)

    def __contains__(self, group: SequenceGroup) -> bool:
        return group in self.groups

    @property
    def candidates(self) -> Iterable[SequenceGroup]:
        """The first in order; an iteration ends with the next change."""
        return itertools.islice(self._flows.in_order(), LOOK_AHEAD)

    @property
    def started(self) -> list[SequenceGroup]:
        """Groups that a worker has worked on, by rank; a draining worker still admits them."""
        return sorted(self._started, key=rank_of)

    def behind(self, group: SequenceGroup, limit: int) -> list[SequenceGroup]:
        """Returns the groups that come next after one, as far as the policy holds them equal."""
        return self._flows.behind(group, limit)

    def num_ahead(self, group: SequenceGroup) -> int:
        """Returns how many wait before a group that waits."""
        if group in self.parked:
            return len(self.parked) - 1
        return self._flows.num_ahead(group)

    def record_arrival(self, group: SequenceGroup, now: float) -> None:
        """Records in a group's timeline that it has come to wait here."""
        group.timeline.queued(
            now, num_ahead=self.num_ahead(group), num_waiting=len(self), ledger=self.waits
        )

    def apply_policy(self, group: SequenceGroup) -> None:
        """Gives a new group its place for life. Raises what the policy does."""
        group.flow = self.policy.flow(group)
        if not isinstance(group.flow, str):
            raise TypeError(f"{type(self.policy).__name__}.flow() returned no string")
        group.rank = float(self.policy.rank(group))
        if math.isnan(group.rank):
            raise ValueError(f"{type(self.policy).__name__}.rank() returned NaN")

    def add(self, group: SequenceGroup) -> None:
        if math.isnan(group.rank):
            self.apply_policy(group)
        self._put(group)
        self.groups.add(group)
        self.num_prompt_tokens += group.num_prompt_tokens
        self.num_predicted_tokens += len(group.request.prediction)
        if group.has_started:
            self._started[group] = None
        if group.suspicion is not None:
            self.suspects[group] = None

    def _put(self, group: SequenceGroup) -> None:
        """Lets a group queue, or park until a worker has compiled its structured output."""
        if self.parked.holds_back(group):
            self.parked.add(group)
            return
        self._flows.add(group)
        if group.params.structured_output is not None:
            self._constraints[group.params.structured_output] += 1

    def remove(self, group: SequenceGroup) -> None:
        """Takes a group out that ends."""
        self._withdraw(group)
        self._forget(group)

    def _withdraw(self, group: SequenceGroup) -> None:
        """Takes a group from where `_put` has put it."""
        if group in self.parked:
            self.parked.remove(group)
            return
        self._flows.remove(group)
        self._uncount(group)

    def _uncount(self, group: SequenceGroup) -> None:
        if (constraint := group.params.structured_output) is not None:
            self._constraints[constraint] -= 1
            if not self._constraints[constraint]:
                del self._constraints[constraint]

    def pop(self, group: SequenceGroup) -> None:
        """Takes a group out that a worker will run."""
        self._flows.pop(group)
        self._uncount(group)
        self._forget(group)

    def _forget(self, group: SequenceGroup) -> None:
        self.groups.remove(group)
        self._started.pop(group, None)
        self.suspects.pop(group, None)
        self.num_prompt_tokens -= group.num_prompt_tokens
        self.num_predicted_tokens -= len(group.request.prediction)
        if (worker := self._reserved_by.pop(group, None)) is not None:
            del self._reserved[worker]
        if self.prefixes and (prefix := self.prefixes.pop(group, None)) is not None:
            prefix.release()

    # Structured outputs

    def waits_for(self, constraint: Constraint) -> bool:
        """Returns whether a group that may come in anywhere needs a structured output."""
        return constraint in self._constraints

    def needing(self, constraint: Constraint) -> list[SequenceGroup]:
        """Returns the groups that wait and need a structured output."""
        return [group for group in self if _constraint(group) == constraint]

    def end_preparation(self, constraint: Constraint, *, is_ready: bool) -> None:
        """Records that a worker has compiled a structured output, or has not."""
        for group in self.parked.end(constraint, is_ready=is_ready):
            self.parked.remove(group)
            self._put(group)

    def forget_grammar(self, constraint: Constraint) -> None:
        """Records that a worker has a structured output no more; if none has, its groups park."""
        if self.parked.forget(constraint) and self.waits_for(constraint):
            self._put_again([one for one in self._flows if _constraint(one) == constraint])

    def _put_again(self, groups: Iterable[SequenceGroup]) -> None:
        for group in groups:
            self._withdraw(group)
            self._put(group)

    def charge(
        self,
        flow: str,
        served: Iterable[SequenceGroup] = (),
        *,
        num_prompt_tokens: int = 0,
        num_output_tokens: int = 0,
    ) -> None:
        """Charges a flow for the tokens it was served; see `pop_uncharged` if the policy fails.

        Called in the middle of a step, of which the others must not suffer.
        """
        try:
            cost = self.policy.cost(
                flow, num_prompt_tokens=num_prompt_tokens, num_output_tokens=num_output_tokens
            )
            self._flows.charge(flow, float(cost))
        except Exception:
            logger.exception("the scheduling policy fails on the cost of flow %r", flow)
            self.uncharged.update(dict.fromkeys(served))

    def pop_uncharged(self) -> list[SequenceGroup]:
        """Returns, once, those that were served what the policy has no cost for; to be ended."""
        uncharged, self.uncharged = list(self.uncharged), {}
        return uncharged

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
        """Asserts that each group is in one flow, in order, and what is counted is right."""
        self._flows.check()
        self.parked.check()
        held_back = [group for group in self._flows if self.parked.holds_back(group)]
        assert not held_back, "a group queues whose structured output no worker has"
        assert self._constraints == Counter(filter(None, map(_constraint, self._flows)))
        groups = list(self)
        assert len(groups) == len(self.groups)
        assert set(groups) == self.groups
        assert self._started.keys() == {group for group in groups if group.has_started}
        assert self.suspects.keys() == {group for group in groups if group.suspicion}
        assert self.num_prompt_tokens == sum(group.num_prompt_tokens for group in groups)
        predictions = (group.request.prediction for group in groups)
        assert self.num_predicted_tokens == sum(map(len, predictions))
        assert self._reserved_by.keys() <= self.groups
        assert self.prefixes.keys() <= self.groups
        assert {group: worker for worker, group in self._reserved.items()} == self._reserved_by


def _constraint(group: SequenceGroup) -> Constraint | None:
    return group.params.structured_output

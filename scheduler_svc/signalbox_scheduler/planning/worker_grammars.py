"""The structured outputs that a worker has compiled, within its memory, and what it compiles next.

A group comes in only where its own is compiled: no step waits for a compilation. The worker
compiles one at a time and says when it is done (`Engine`). What a running or swapped group
needs, or a waiting one that was let on, is kept; the rest is forgotten, least recently used
first, when another needs its memory.
"""

from collections import OrderedDict
from typing import NamedTuple

from signalbox_contract.structured_output.grammar_cost import GrammarCost
from signalbox_scheduler.planning.sequence_release import SequenceRelease
from signalbox_scheduler.queue.grammar_queue import Constraint
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.failures import cannot_compile
from signalbox_scheduler.requests.sequence_group import SequenceGroup

MAX_PASSED_OVER = 4
"""Times that a worker compiles what no worker has before what only this worker lacks."""


class Preparation(NamedTuple):
    """Request to a worker to forget some constraints and to compile one."""

    constraint: Constraint
    cost: GrammarCost
    forgotten: tuple[Constraint, ...]


class WorkerGrammars:
    """One worker's.

    Args:
        memory_bytes: what its compiled grammars may count for.
    """

    def __init__(
        self, queues: GroupQueues, sequence_release: SequenceRelease, *, memory_bytes: int
    ) -> None:
        self.memory_bytes = memory_bytes
        self._queues = queues
        self._sequence_release = sequence_release
        self._admission = queues.admission
        self._ready: OrderedDict[Constraint, int] = OrderedDict()  # bytes, last used last
        self.wanted: SequenceGroup | None = None
        """The first group that would have come in if this worker had what it needs."""
        self._num_passed_over = 0
        self._compiling: Preparation | None = None
        self.to_send: Preparation | None = None
        """Request to the worker that is not sent yet."""

    @property
    def num_bytes(self) -> int:
        """Bytes of the compiled grammars, the one that is being compiled included."""
        compiling = 0 if self._compiling is None else self._charged(self._compiling.cost)
        return sum(self._ready.values()) + compiling

    def leave(self) -> None:
        """Says that the worker is gone, and all that it has compiled."""
        if self._compiling is not None:
            self._admission.end_preparation(self._compiling.constraint, is_ready=False)
        for constraint in self._ready:
            self._admission.forget_grammar(constraint)
        self._compiling = self.to_send = None
        self._ready.clear()

    def has(self, group: SequenceGroup) -> bool:
        """Returns whether a group may come in."""
        constraint = group.params.structured_output
        return constraint is None or constraint in self._ready

    def want(self, group: SequenceGroup) -> None:
        """Records that a group would come in if this worker had what it needs."""
        self.wanted = self.wanted or group

    def record_use(self, group: SequenceGroup) -> None:
        constraint = group.params.structured_output
        if constraint is not None and constraint in self._ready:
            self._ready.move_to_end(constraint)

    def plan(self) -> None:
        """Chooses what the worker compiles next, if it compiles nothing and there is room."""
        wanted, self.wanted = self.wanted, None
        if self._compiling is not None:
            return
        group = self._next(wanted)
        if group is None:
            return
        constraint, cost = group.params.structured_output, group.params.grammar_cost
        assert constraint is not None, group.request_id
        forgotten = self._make_room(self._charged(cost))
        if forgotten is not None:
            self._compiling = self.to_send = Preparation(constraint, cost, tuple(forgotten))
            self._admission.parked.begin(group)

    def _next(self, wanted: SequenceGroup | None) -> SequenceGroup | None:
        """Returns what to compile for: one that no worker has, before one that another has.

        The other worker will most often take its group; this one helps if it does not for long.
        """
        parked = self._admission.parked.next() if self._queues.takes_new else None
        if wanted is None or (parked is not None and self._num_passed_over < MAX_PASSED_OVER):
            self._num_passed_over += wanted is not None
            return parked
        self._num_passed_over = 0
        return wanted

    def pop_preparation(self) -> Preparation | None:
        """Returns, once, what the worker is to be asked."""
        to_send, self.to_send = self.to_send, None
        return to_send

    def prepared(self, constraint: Constraint, *, fault: str = "") -> None:
        """Takes the worker's answer; groups that wait for what cannot be compiled fail.

        Raises ValueError if the worker was not asked.
        """
        if self._compiling is None or self._compiling.constraint != constraint:
            raise ValueError("a structured output that is not being compiled")
        if not fault:
            self._ready[constraint] = self._charged(self._compiling.cost)
        self._compiling = None
        self._admission.end_preparation(constraint, is_ready=not fault)
        if fault:
            for group in self._admission.needing(constraint):
                self._admission.remove(group)
                self._sequence_release.fail_later(group, cannot_compile(fault))

    def _charged(self, cost: GrammarCost) -> int:
        """One that alone exceeds the memory is let in alone."""
        return min(cost.held_bytes, self.memory_bytes)

    def _make_room(self, num_bytes: int) -> list[Constraint] | None:
        """Forgets what no group needs until `num_bytes` are free; if they are not, returns None."""
        missing = sum(self._ready.values()) + num_bytes - self.memory_bytes
        forgotten: list[Constraint] = []
        if missing > 0:
            groups = self._queues.running + self._queues.swapped
            needed = {group.params.structured_output for group in groups}
            for constraint, size in self._ready.items():
                is_needed = constraint in needed or self._admission.waits_for(constraint)
                if missing > 0 and not is_needed:
                    forgotten.append(constraint)
                    missing -= size
        if missing > 0:
            return None
        for constraint in forgotten:
            del self._ready[constraint]
            self._admission.forget_grammar(constraint)
        return forgotten

    def check(self) -> None:
        """Asserts that what runs is compiled, and all of it within the memory."""
        assert self.num_bytes <= self.memory_bytes
        for group in self._queues.running + self._queues.swapped:
            constraint = group.params.structured_output
            assert constraint is None or constraint in self._ready

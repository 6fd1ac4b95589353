"""Swaps groups to the CPU pool and back: the part of the planner for a step's block moves.

A worker moves the blocks of a step before it computes, so a group may compute in the step that
brings it back.
"""

from signalbox_scheduler.config import PreemptionMode
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.planning.sequence_release import NO_LONGER_FITS
from signalbox_scheduler.requests.sequence_group import SequenceGroup

STEPS_TO_RETRY = 1000
"""Steps without swaps after which the announced rate holds again: what seems too dear is not done,
and so not seen to have become cheaper."""


class Swapping:
    """Decides which groups of one worker are swapped."""

    def __init__(self, state: SchedulerState) -> None:
        self._queues = state.queues
        self._blocks = state.blocks
        self._selection = state.selection
        self._sequence_release = state.sequence_release
        self._cost = state.cost
        self._mode = state.config.preemption_mode
        self._num_steps_without = 0  # since the last step that swapped

    def is_preferred(self, group: SequenceGroup) -> bool:
        """Chooses between swap and recompute; without room in the CPU pool it is recompute."""
        if group.suspicion is not None:  # it comes back in a step of its own, which swaps nothing
            return False
        if self._mode is PreemptionMode.RECOMPUTE or not self._blocks.swaps.can_swap_out(group):
            return False
        return self._mode is PreemptionMode.SWAP or self._cost.prefers_swap(
            num_blocks=self._blocks.num_distinct_blocks(group),
            num_tokens=self._blocks.num_distinct_tokens(group),
        )

    def preempt(self, group: SequenceGroup) -> None:
        """Takes a running group's blocks off the GPU."""
        self._blocks.swaps.swap_out(group)
        self._queues.set_aside(group)

    def pop_group(self) -> SequenceGroup | None:
        """Brings back the first of the swapped groups, which is in no queue then.

        Returns None if there is none, or if it has to wait. Groups that no longer fit end.
        """
        while swapped := self._queues.swapped:
            group = swapped[0]
            status = self._blocks.swaps.can_swap_in(group)
            if status is AllocStatus.NEVER:
                self._sequence_release.fail_later(group, NO_LONGER_FITS)
                continue
            if status is AllocStatus.LATER or not self._selection.has_slots(group):
                return None
            del swapped[0]
            self._blocks.swaps.swap_in(group)
            return group
        return None

    def observe(self, plan: StepPlan, *, swap_ns: int) -> None:
        """Measures what the swaps of an answered step took.

        Need not be called for a step without any while the announced rate of copies holds.
        """
        moves = plan.block_moves
        if moves.num_swapped:
            self._cost.observe_swaps(
                num_blocks=moves.num_swapped,
                num_copies=len(moves.copy.src),
                swap_ns=swap_ns,
            )
            self._num_steps_without = 0
            return
        self._num_steps_without += 1
        if self._num_steps_without == STEPS_TO_RETRY:
            self._cost.forget_swaps()

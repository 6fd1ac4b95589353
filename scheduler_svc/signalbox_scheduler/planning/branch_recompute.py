"""Starts the branches of a group that is recomputed: the first comes in alone, the others share.

Branches hold the whole blocks of their prompt once, so each waits until one of them has it, and
takes that one's blocks rather than equal ones of the prefix cache. Branches that a search chooses
wait for each other: a group that could not start all of them would never continue, so it takes
blocks from the groups behind it.
"""

from signalbox_scheduler.kv.prefix_cache import FoundBlock
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.preemption import Preemption
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup


class BranchRecompute:
    """Knows which groups have branches without blocks, and what those can share."""

    def __init__(self, state: SchedulerState, *, preemption: Preemption) -> None:
        self._blocks = state.blocks
        self._queues = state.queues
        self._preemption = preemption
        self.incomplete: dict[SequenceGroup, None] = {}
        """Groups that may have branches without blocks."""

    def record(self, group: SequenceGroup) -> None:
        """Records that a group has come in, its first branch alone with blocks."""
        if len(group.unfinished) > 1:
            self.incomplete[group] = None

    def make_room(self, plan: StepPlan, now: float) -> None:
        """Frees blocks for branches that lack them, at the cost of groups behind theirs.

        Is called before decodes are planned, as groups that yield must not be among them.
        """
        for group in list(self.incomplete):
            if not _lacks_blocks(group):
                del self.incomplete[group]
        if self.incomplete:
            for group in [group for group in self._queues.running if group in self.incomplete]:
                if not plan.takes(group):
                    continue
                self._make_room(group, plan, now)

    def _make_room(self, group: SequenceGroup, plan: StepPlan, now: float) -> None:
        seq = _lacks_blocks(group)[0]
        while (prefix := self.prefix_of(seq)) is not None:
            if self._blocks.can_start(seq, prefix):
                return
            if not self._preemption.preempt_behind(group, plan, now):
                return

    def prefix_of(self, seq: Sequence) -> list[FoundBlock] | None:
        """Returns the blocks that a branch without any can share; None if it has to wait."""
        prefix = self._blocks.find_prefix(seq)
        num_prefix_tokens = self._blocks.sizes.num_prefix_tokens(seq.group)
        started = [other for other in seq.group.unfinished if other.block_table]
        ready = [other for other in started if other.num_computed_tokens >= num_prefix_tokens]
        if not ready:
            return None if started else prefix
        if not self._blocks.sizes.keeps_all:
            return prefix  # those that a branch has are no more those of the prompt's end
        num_shared = num_prefix_tokens // self._blocks.block_size * self._blocks.num_groups
        shared = [FoundBlock(block) for block in ready[0].block_table[:num_shared]]
        return shared + prefix[num_shared:]


def _lacks_blocks(group: SequenceGroup) -> list[Sequence]:
    return [seq for seq in group.unfinished if not seq.block_table]

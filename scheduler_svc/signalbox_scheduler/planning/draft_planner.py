"""Lets sequences compute drafts: tokens that the worker expects behind the newest one.

A step in flight may add as many tokens to a sequence as it has drafts, and one. All of them count
as planned until its answer says how many there are: blocks are taken, and tokens of steps counted,
for the most, and a later step begins where the worker is by then.

With states of recurrent layers, no run passes the end of a row, and none begins a row before the
answers to the runs before it: the row of the state is then the same however many drafts stay.
"""

from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.worker_state import WorkerState
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup


class DraftPlanner:
    """Books the drafts of one worker's sequences."""

    def __init__(
        self,
        *,
        most: int,
        queues: GroupQueues,
        blocks: BlockSpaceManager,
        worker_state: WorkerState,
    ) -> None:
        self._most = most
        self._queues = queues
        self._blocks = blocks
        self._worker_state = worker_state
        self._num_left = 0
        """Drafts that the step which is being planned may still have."""

    def begin(self, plan: StepPlan) -> None:
        """Begins a plan: each sequence gets its token, and drafts half of what is left, so that
        prompts go on."""
        self._num_left = max(0, plan.token_budget - self._queues.num_sequence_slots) // 2

    def take(self, group: SequenceGroup) -> None:
        """Says how many drafts the sequences of a group that comes to run here may have."""
        request = group.request
        is_one_by_one = request.no_speculation or request.beam_search is not None or group.pools
        group.max_drafts = 0 if is_one_by_one else self._most

    def speculates(self, group: SequenceGroup) -> bool:
        """Says whether a sequence of a group may have drafts in the next step."""
        return group.max_drafts > 0 and group.suspicion is None

    def must_wait(self, seq: Sequence) -> bool:
        """Says whether a sequence waits for answers that show where its next token goes."""
        begins_row = seq.num_planned_tokens % self._blocks.block_size == 0
        return begins_row and seq.num_inflight_drafts > 0 and self._blocks.states.num_blocks > 0

    def book(self, plan: StepPlan, seq: Sequence) -> int:
        """Returns how many drafts a sequence may compute beside its token, and takes their blocks.

        None if that leaves too few blocks: they are not worth what a preemption costs.
        """
        group = seq.group
        if group.times.first_token is None or group.suspicion is not None:
            return 0
        if group in plan.dear or not seq.is_on_worker:
            return 0
        num_to_last = group.max_length - 2 - seq.num_planned_tokens
        num_drafts = min(group.max_drafts, num_to_last, self._num_left)
        if has_states := self._blocks.states.num_blocks > 0:
            size = self._blocks.block_size
            num_drafts = min(num_drafts, size - 1 - seq.num_planned_tokens % size)
        if num_drafts < 1 or plan.is_short_of_blocks:
            return 0
        if not has_states:  # else the token's row is all
            if self._blocks.can_append_slots(seq, 1 + num_drafts) is not AllocStatus.OK:
                return 0
            self._worker_state.append_slots(plan, seq, 1 + num_drafts)
        self._num_left -= num_drafts
        return num_drafts

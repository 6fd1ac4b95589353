"""Decides which sequences of a plan compute drafts, and books the tokens and blocks for them.

A step adds one token to a sequence, and one for each draft that is accepted. Until the answer says
how many were, all of them count as planned: blocks are taken and tokens counted for the most.

With states of recurrent layers, no run passes the end of a row, and none begins a row before the
runs in flight are answered: the state's row is then the same however many drafts are accepted.

A sequence with drafts is outside the decode batch, which counts a token a step. It joins the batch
while drafts do not pay, and while the worker has none for it. Of those for which it had none the
worker says when it has some again.
"""

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.config import StepLimits
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.planning.decode_batch import DecodeBatch
from signalbox_scheduler.planning.draft_lengths import (
    FIRST_PAUSE_STEPS,
    IDLE_STEPS,
    DraftLengths,
)
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.worker_state import WorkerState
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.draft_use import DraftRecord
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup


class DraftPlanner:
    """Books the drafts of one worker's sequences."""

    def __init__(
        self,
        limits: StepLimits,
        queues: GroupQueues,
        blocks: BlockSpaceManager,
        decode_batch: DecodeBatch,
        worker_state: WorkerState,
    ) -> None:
        self._queues = queues
        self._blocks = blocks
        self._decode_batch = decode_batch
        self._worker_state = worker_state
        self._lengths = DraftLengths(limits.max_draft_tokens)
        self._num_left = 0
        """Drafts that the step which is being planned may still have."""
        self._is_full = False
        """True if it may have none, beside the tokens of its sequences."""
        self._paused: dict[Sequence, int] = {}
        """Steps in which the pauses of sequences end."""
        self._next_end = 0
        """No pause ends before this step."""

    def begin(self, plan: StepPlan) -> None:
        """Begins a plan. Each sequence gets its token; drafts get at most half of the remaining
        budget, so that prompts make progress."""
        self._num_left = max(0, plan.token_budget - self._queues.num_sequence_slots) // 2
        if not self._lengths.is_timed:  # rows may cost as much as tokens do
            self._num_left = min(self._num_left, self._lengths.most)
        self._is_full = not self._num_left
        if self._paused and self._next_end <= plan.step_id:
            self._end_pauses(plan.step_id)

    def take(self, group: SequenceGroup) -> None:
        """Sets the most drafts of the sequences of a group that begins to run here."""
        request = group.request
        is_one_by_one = request.no_speculation or request.beam_search is not None or group.pools
        group.max_drafts = 0 if is_one_by_one else self._lengths.most
        for seq in group.unfinished:
            if seq.draft_record is not None and seq.draft_record.is_out:
                self._lengths.resume(seq.draft_record)
                self.forget(seq)

    def forget(self, seq: Sequence) -> None:
        """Drops what is kept of a sequence that ends, or leaves this worker."""
        self._paused.pop(seq, None)

    def speculates(self, group: SequenceGroup) -> bool:
        """Returns True if a sequence of a group may have drafts in the next steps."""
        if not group.max_drafts or group.suspicion is not None:
            return False
        records = [seq.draft_record for seq in group.unfinished]
        return any(record is None or not record.is_out for record in records)

    def must_wait(self, seq: Sequence) -> bool:
        """Returns True if a sequence waits for the answers to its runs in flight, since its next
        token would begin a row."""
        begins_row = seq.num_planned_tokens % self._blocks.block_size == 0
        return begins_row and seq.num_inflight_drafts > 0 and self._blocks.states.num_blocks > 0

    def book(self, plan: StepPlan, seq: Sequence) -> int:
        """Returns how many drafts a sequence may compute beside its token, and takes their blocks
        and that of the token.

        0, taking none, if there are too few free blocks: drafts are not worth a preemption.
        """
        group = seq.group
        if group.times.first_token is None or group.suspicion is not None:
            return 0
        if group in plan.dear or not seq.is_on_worker:
            return 0
        num_to_last = group.max_length - 2 - seq.num_planned_tokens
        num_drafts = min(self._length(plan, seq), num_to_last, self._num_left)
        if self._blocks.states.num_blocks:
            size = self._blocks.block_size
            num_drafts = min(num_drafts, size - 1 - seq.num_planned_tokens % size)
        if num_drafts < 1 or plan.is_short_of_blocks:
            return 0
        if self._blocks.can_append_slots(seq, 1 + num_drafts) is not AllocStatus.OK:
            return 0
        self._worker_state.append_slots(plan, seq, 1 + num_drafts)
        self._num_left -= num_drafts
        return num_drafts

    def _length(self, plan: StepPlan, seq: Sequence) -> int:
        """Returns the best number of drafts. A sequence for which that is none pauses, and one for
        which nothing is proposed waits for an offer."""
        record = seq.draft_record
        if record is None:
            # A prediction is likely right, however few drafts of others were accepted.
            is_trial = bool(seq.group.request.prediction)
            record = seq.draft_record = DraftRecord(is_trial=is_trial)
        if record.is_out or self._lengths.is_measuring:
            return 0
        if record.num_idle >= IDLE_STEPS:
            record.is_idle = True
            return 0
        length = 0 if self._is_full else self._lengths.next(record)
        if not length:
            self._pause_until(plan.step_id + self._lengths.pause(record), seq)
        return length

    def _pause_until(self, step_id: int, seq: Sequence) -> None:
        self._paused[seq] = step_id
        self._next_end = min(self._next_end, step_id)

    def _end_pauses(self, step_id: int) -> None:
        for seq in [seq for seq, end in self._paused.items() if end <= step_id]:
            del self._paused[seq]
            record = seq.draft_record
            if record is None or not self._queues.runs(seq.group):
                continue  # `take` ends the pause
            if self._lengths.may_pay:
                self._lengths.resume(record)
                self._decode_batch.release(seq.group)
            else:
                self._pause_until(step_id + FIRST_PAUSE_STEPS, seq)
        self._next_end = min(self._paused.values(), default=0)

    def observe_step(self, plan: StepPlan, result: StepResult) -> None:
        """Takes the drafts that an answer offers, and records the time of its step, if that is
        known and all sequences decode."""
        drafts, timings = result.drafts, result.timings
        if result.draft_offers is not None:
            self._take_offers(plan, set(result.draft_offers.tolist()))
        if timings.forward_ns and 0 < plan.total_tokens == len(plan.seqs):
            self._lengths.observe_step(
                num_seqs=len(plan.seqs),
                num_drafts=0 if drafts is None else sum(drafts.num_drafts.tolist()),
                num_tokens=len(result.token_ids),
                ns=timings.forward_ns + timings.sample_ns,
            )

    def _take_offers(self, plan: StepPlan, seq_ids: set[int]) -> None:
        for seq in plan.seqs:
            record = seq.draft_record
            if seq.seq_id in seq_ids and record is not None and record.is_idle:
                self._lengths.resume(record)
                self._decode_batch.release(seq.group)

    def observe_run(
        self, seq: Sequence, *, num_drafts: int, num_accepted: int, source: int
    ) -> None:
        """Records how many drafts of a sequence were accepted in a step that allowed some."""
        if seq.draft_record is not None:
            self._lengths.observe_run(
                seq.draft_record, num_drafts=num_drafts, num_accepted=num_accepted, source=source
            )

    def check(self) -> None:
        """Asserts that sequences pause which have not ended, and not beyond their turn."""
        assert not any(seq.is_finished for seq in self._paused)
        assert all(self._next_end <= end for end in self._paused.values())

"""Makes room for running groups: chooses the group that yields, and swapping or recomputing.

Preemption of whole groups, the last in line first, follows vLLM (SOSP 2023, section 4.5).
"""

import logging
from collections.abc import Iterator

from signalbox_rpc.metrics.sample import Sample, counter
from signalbox_rpc.telemetry import logs
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.planning.sequence_release import NO_LONGER_FITS
from signalbox_scheduler.planning.swapping import Swapping
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup
from signalbox_scheduler.requests.timeline import EventKind

logger = logging.getLogger(__name__)


class Preemption:
    """Takes blocks from groups that run, for the sake of those before them."""

    def __init__(self, state: SchedulerState, swapping: Swapping) -> None:
        self.num_preemptions = 0
        self.num_recomputes = 0  # of those; the others were swapped
        self._queues = state.queues
        self._blocks = state.blocks
        self._decode_batch = state.decode_batch
        self._worker_state = state.worker_state
        self._sequence_release = state.sequence_release
        self._swapping = swapping
        self._state = state

    def samples(self) -> Iterator[Sample]:
        yield counter("num_preemptions", "Times that a request had to yield.", self.num_preemptions)
        yield counter("num_recomputes", "Preemptions that were not swaps.", self.num_recomputes)

    def make_room(self, seq: Sequence, plan: StepPlan, now: float) -> bool:
        """Gives a sequence the block of its next token, at the cost of those behind it.

        Returns False if it has to sit this step out: it yielded itself, or its victim is in
        flight and goes in the next step. A group that nothing can make room for ends.
        """
        while (status := self._blocks.can_append_slots(seq, 1)) is not AllocStatus.OK:
            if status is AllocStatus.NEVER:
                self._sequence_release.fail_later(seq.group, NO_LONGER_FITS)
                return False
            if not self._preempt_last(seq.group, plan, now):
                return False
        self._worker_state.append_slots(plan, seq, 1)
        return True

    def preempt_behind(self, group: SequenceGroup, plan: StepPlan, now: float) -> bool:
        """Gives a running group the blocks of the last group, if that is another.

        Returns False if there is no other, or if it is in flight and is preempted in the next step.
        """
        plan.is_short_of_blocks = True
        if self._gives_up(now):
            return True
        if self._queues.running[-1] is group:
            return False
        return self._preempt_last(group, plan, now)

    def _preempt_last(self, group: SequenceGroup, plan: StepPlan, now: float) -> bool:
        """Preempts the last group; returns True if another group lost its blocks.

        What is kept for groups that are still on their way here goes first.
        """
        plan.is_short_of_blocks = True
        if self._gives_up(now):
            return True
        if plan.deferred_victims:  # one victim at a time is waited for
            return False
        victim = self._queues.running[-1]
        self._decode_batch.release(victim)  # its counters tell whether it is in flight
        if victim.is_inflight:
            plan.deferred_victims.append(victim)
            return False
        self._preempt(victim, plan, now, by=group)
        return victim is not group

    def _gives_up(self, now: float) -> bool:
        """Frees what no running group needs: blocks kept for groups that are still on their way
        here, then snapshots of running sequences, the last group's first.

        Returns False if there is nothing.
        """
        if self._state.connector.release_reservation(now):
            return True
        if not self._blocks.states.num_blocks:
            return False
        self._decode_batch.release_all()  # its counters tell what steps in flight read
        num_free = self._blocks.gpu.num_free
        for group in reversed(self._queues.running):
            for seq in group.unfinished:
                self._blocks.states.yield_snapshots(seq)
            if self._blocks.gpu.num_free > num_free:
                return True
        return False

    def _preempt(
        self, group: SequenceGroup, plan: StepPlan, now: float, *, by: SequenceGroup
    ) -> None:
        plan.preempted.append(group)
        self.num_preemptions += 1
        group.num_preemptions += 1
        group.times.preempted_at = now
        for seq in group.unfinished:
            self._worker_state.forget(seq)
            self._state.drafts.forget(seq)
        is_swap = self._swapping.is_preferred(group)
        group.timeline.add(
            EventKind.PREEMPTED,
            now,
            step_id=plan.step_id,
            num_blocks=self._blocks.num_distinct_blocks(group),
            is_swap=is_swap,
            other_request_id=by.request_id,
        )
        if is_swap:
            self._swapping.preempt(group)
        else:
            self._set_back(group, now)
        with logs.of_request(group.request_id, group.request.traceparent):
            logger.info(
                "request preempted: %(mode)s, %(num_free_blocks)d KV blocks are free",
                {
                    "mode": "swap" if is_swap else "recompute",
                    "num_free_blocks": self._blocks.gpu.num_free,
                },
            )

    def _set_back(self, group: SequenceGroup, now: float) -> None:
        self.num_recomputes += 1
        for seq in group.unfinished:
            self._blocks.free(seq)
        group.forget_progress()
        self._queues.set_back(group)
        group.timeline.wait(self._queues.admission.waits, now)

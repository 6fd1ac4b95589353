"""Which of the waiting groups a worker takes next: the first that may come in, if it has room.

Workers pull from the one admission queue, so the load is balanced with no estimate of it. Close
behind the first a group may come before it whose prefix this worker has cached, a few times.
"""

from signalbox_scheduler.config import StepLimits
from signalbox_scheduler.kv.block_allocator import AllocStatus
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.planning.sequence_release import SequenceRelease
from signalbox_scheduler.planning.suspect_turns import SuspectSchedule
from signalbox_scheduler.planning.worker_grammars import WorkerGrammars
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.wait_accounting import WaitReason

AFFINITY_WINDOW = 8
"""Groups among which a worker prefers the one that it has cached most of."""
MAX_PASSED_OVER = 8
"""Times that other groups may be admitted before a group for that reason."""


class GroupSelection:
    """Chooses for one worker, and says what kept the first out."""

    def __init__(
        self,
        queues: GroupQueues,
        blocks: BlockSpaceManager,
        sequence_release: SequenceRelease,
        *,
        limits: StepLimits,
        grammars: WorkerGrammars,
        suspects: SuspectSchedule,
    ) -> None:
        self.obstacle = WaitReason.NEXT_STEP
        """Reason why the first group of the queue was not admitted."""
        self._limits = limits
        self._queues = queues
        self._blocks = blocks
        self._sequence_release = sequence_release
        self._grammars = grammars
        self._suspects = suspects

    def next_group(self) -> SequenceGroup | None:
        """Returns the waiting group that is admitted next; None if none can be now.

        No group passes one that this worker makes room for. A group that waits for room on another
        worker delays no group here.
        """
        admission = self._queues.admission
        if self._is_full():
            return None
        self.obstacle = WaitReason.NO_WORKER
        for group in self._queues.candidates:
            if not self.can_ever_run(group):
                continue
            if not self._grammars.has(group):
                self._grammars.want(group)
                self.obstacle = WaitReason.GRAMMAR
                continue
            if group.suspicion is not None:
                if self._is_in_line(group):
                    return None
                continue
            choice = self._choose(group)
            if choice is not None:
                self._grammars.record_use(choice)
            if choice is not None or admission.reserve(group, self._queues):
                return choice
        return None

    def _is_in_line(self, suspect: SequenceGroup) -> bool:
        """Returns whether this worker keeps its room for a suspect, which comes in by itself."""
        if not self._suspects.may_try(suspect):
            return False
        if not self._queues.admission.reserve(suspect, self._queues):
            return False
        if self._fits(suspect):
            self.obstacle = WaitReason.SUSPECT
        return True

    def next_suspect(self) -> SequenceGroup | None:
        """Returns the suspect that comes in next, if one can now; this worker makes room for it."""
        if self._is_full():
            return None
        for group in self._suspects.candidates:
            if not self._grammars.has(group):
                self._grammars.want(group)
            elif self.can_ever_run(group) and self._queues.admission.reserve(group, self._queues):
                if not self._fits(group):
                    return None
                self._grammars.record_use(group)
                return group
        return None

    def _is_full(self) -> bool:
        if self._num_free_slots < 1:
            self.obstacle = WaitReason.SEQUENCES
        elif not self._blocks.gpu.num_free:
            self.obstacle = WaitReason.BLOCKS
        else:
            return False
        return True

    def _choose(self, group: SequenceGroup) -> SequenceGroup | None:
        """Returns the group, or an equal close behind that finds more of its prefix, if it fits."""
        if rivals := self._rivals(group):
            line = [group, *rivals]
            found = [self._blocks.estimate_prefix(one.unfinished[0]) for one in line]
            best = found.index(max(found))
            if best and self._fits(line[best]):
                for passed in line[:best]:
                    passed.num_passed_over += 1
                return line[best]
        return group if self._fits(group) else None

    def _rivals(self, group: SequenceGroup) -> list[SequenceGroup]:
        """Returns those behind a group that may come in before it, in order."""
        rivals: list[SequenceGroup] = []
        if _must_not_be_passed(group):  # a group that returns to a draining worker, too
            return rivals
        for one in self._queues.admission.behind(group, AFFINITY_WINDOW - 1):
            may_pass = one.suspicion is None and self._grammars.has(one)
            if may_pass and self.can_ever_run(one):
                rivals.append(one)
            if _must_not_be_passed(one):
                break
        return rivals

    def has_room(self, group: SequenceGroup) -> bool:
        """Says whether a group could come in now, were it first in line."""
        return self.has_slots(group) and self._blocks.can_allocate(group) is AllocStatus.OK

    def _fits(self, group: SequenceGroup) -> bool:
        if not self.has_slots(group):
            self.obstacle = WaitReason.SEQUENCES
        elif self._blocks.can_allocate(group) is not AllocStatus.OK:
            self.obstacle = WaitReason.BLOCKS
        else:
            return True
        return False

    def can_ever_run(self, group: SequenceGroup) -> bool:
        """Says whether the group could run here if it were alone."""
        if not self._queues.admission.has_adapter(group):
            return False
        fits_step = group.num_branches <= self._limits.max_num_seqs
        return fits_step and self._blocks.sizes.can_ever_hold(group)

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens with which the group could run here; else below 1."""
        fits_step = group.num_branches <= self._limits.max_num_seqs
        return self._blocks.sizes.most_new_tokens(group) if fits_step else 0

    @property
    def _num_free_slots(self) -> int:
        """Sequences that a step has room for; those that end are known to the worker till then."""
        taken = self._queues.num_sequence_slots + len(self._sequence_release.draining)
        return self._limits.max_num_seqs - taken - self._queues.num_held_slots

    def has_slots(self, group: SequenceGroup) -> bool:
        return group.num_reserved_sequences <= self._num_free_slots


def _must_not_be_passed(group: SequenceGroup) -> bool:
    """A group that has begun goes on first; others are passed over a few times at most."""
    return group.has_started or group.num_passed_over >= MAX_PASSED_OVER

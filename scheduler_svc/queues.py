"""Which groups run on one worker, which are swapped there, and the queue that all workers share.

A group is in the queue of its status; what moves a group from one to another sets both here.
"""

import bisect
from collections.abc import Iterable

from scheduler_svc.admission import AdmissionQueue
from scheduler_svc.sequence import SequenceGroup, SequenceStatus


class GroupQueues:
    """`running` and `swapped` are in order of priority; who is last yields first.

    Groups come out of `admission`, which the workers share, and go back there when they are
    preempted by recompute.
    """

    def __init__(self, admission: AdmissionQueue) -> None:
        self.admission = admission
        self.running: list[SequenceGroup] = []
        self.swapped: list[SequenceGroup] = []
        self.is_accepting = True

    def __contains__(self, group: SequenceGroup) -> bool:
        """Says whether the group is on this worker."""
        return group in self.running or group in self.swapped

    @property
    def candidates(self) -> Iterable[SequenceGroup]:
        """Waiting groups that this worker may take, in order of priority."""
        return self.admission if self.is_accepting else self.admission.started

    def run(self, group: SequenceGroup) -> None:
        """Puts a group, which is in no queue, among those that run."""
        group.set_status(SequenceStatus.RUNNING)
        bisect.insort(self.running, group, key=self.admission.priority)

    def swap_out(self, group: SequenceGroup) -> None:
        """Moves a running group to the swapped ones."""
        self.running.remove(group)
        group.set_status(SequenceStatus.SWAPPED)
        bisect.insort(self.swapped, group, key=self.admission.priority)

    def set_back(self, group: SequenceGroup) -> None:
        """Moves a running group back among the waiting ones of all workers."""
        self.running.remove(group)
        group.set_status(SequenceStatus.WAITING)
        self.admission.add(group)

    def remove(self, group: SequenceGroup) -> None:
        """Takes a group off this worker; a no-op if it is not there."""
        for queue in (self.running, self.swapped):
            if group in queue:
                queue.remove(group)

    def take_all(self) -> list[SequenceGroup]:
        """Empties `running` and `swapped`; the groups are in no queue then."""
        groups = self.running + self.swapped
        self.running, self.swapped = [], []
        return groups

    def check(self) -> None:
        """Asserts that each group is in the queue of its status, and unfinished."""
        for queue, status in (
            (self.running, SequenceStatus.RUNNING),
            (self.swapped, SequenceStatus.SWAPPED),
            (self.admission, SequenceStatus.WAITING),
        ):
            for group in queue:
                assert all(seq.status is status for seq in group.unfinished), group.request_id
                assert group.unfinished, f"{group.request_id} has ended and is queued"
        for group in self.admission:
            assert not any(seq.block_table for seq in group.sequences), group.request_id

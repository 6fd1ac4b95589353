"""The groups that run, are swapped or load on one worker, and the queue that all workers share.

A group is in the queue of its status; what moves a group from one to another sets both here.
"""

import bisect
from collections.abc import Iterable

from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.queue.fair_queue import rank_of
from signalbox_scheduler.requests.sequence_group import SequenceGroup, SequenceStatus


class GroupQueues:
    """`running` and `swapped` are in the policy's order; the last group yields first.

    That order never changes, so the first group is never preempted, and each becomes the first.
    Groups come out of `admission`, which the workers share, and go back there when they are
    preempted by recompute.
    """

    def __init__(self, admission: AdmissionQueue) -> None:
        self.admission = admission
        self.running: list[SequenceGroup] = []
        self.swapped: list[SequenceGroup] = []
        self.loading: dict[SequenceGroup, None] = {}
        """Groups whose prefix is looked for in the worker's store, or on its way from there."""
        self.is_accepting = True
        self.only_decodes = False
        """True if other workers compute prompts, and migrate the groups."""
        self.num_sequence_slots = 0
        """Sequences of the running groups, those that forks will add included."""
        self.num_held_slots = 0
        """Sequences of groups that other workers are migrating."""
        self.num_returned = 0
        """Times that a group has gone back to the shared queue; another worker may take it."""
        self._slots_of: dict[SequenceGroup, int] = {}  # of each that runs

    def __contains__(self, group: SequenceGroup) -> bool:
        """Says whether the group is on this worker."""
        return group in self._slots_of or group in self.swapped or group in self.loading

    @property
    def candidates(self) -> Iterable[SequenceGroup]:
        """Waiting groups that this worker may take, in order."""
        return self.admission.candidates if self.takes_new else self.admission.started

    @property
    def takes_new(self) -> bool:
        """True if groups that no worker has worked on may come in out of the queue."""
        return self.is_accepting and not self.only_decodes

    def run(self, group: SequenceGroup) -> None:
        """Puts a group, which is in no queue, among those that run."""
        group.set_status(SequenceStatus.RUNNING)
        bisect.insort(self.running, group, key=rank_of)
        self._slots_of[group] = 0
        self.recount(group)

    def recount(self, group: SequenceGroup) -> None:
        """Follows a change in the number of a group's sequences."""
        if group in self._slots_of:
            self.num_sequence_slots += group.num_reserved_sequences - self._slots_of[group]
            self._slots_of[group] = group.num_reserved_sequences

    def set_aside(self, group: SequenceGroup) -> None:
        """Moves a running group to the swapped ones."""
        self._stop_running(group)
        group.set_status(SequenceStatus.SWAPPED)
        bisect.insort(self.swapped, group, key=rank_of)

    def set_back(self, group: SequenceGroup) -> None:
        """Moves a running group back among the waiting ones of all workers."""
        self._stop_running(group)
        self._return(group)

    def load(self, group: SequenceGroup) -> None:
        """Takes a waiting group out of the queue of all workers while its prefix loads."""
        self.admission.remove(group)
        group.set_status(SequenceStatus.LOADING)
        self.loading[group] = None

    def return_loaded(self, group: SequenceGroup) -> None:
        """Puts a loading group back among the waiting ones of all workers."""
        del self.loading[group]
        self._return(group)

    def _return(self, group: SequenceGroup) -> None:
        group.set_status(SequenceStatus.WAITING)
        self.admission.add(group)
        self.num_returned += 1

    def remove(self, group: SequenceGroup) -> None:
        """Takes a group off this worker; a no-op if it is not there."""
        if group in self._slots_of:
            self._stop_running(group)
        elif group in self.swapped:
            self.swapped.remove(group)
        else:
            self.loading.pop(group, None)

    def runs(self, group: SequenceGroup) -> bool:
        """Says whether the group runs on this worker."""
        return group in self._slots_of

    def pause(self, group: SequenceGroup) -> None:
        """Lets no step take a running group until it goes on, or runs no more."""
        group.is_paused = True

    def resume(self, group: SequenceGroup) -> None:
        """Lets steps take a paused group again; a no-op if it runs no more."""
        if self.runs(group):
            group.is_paused = False

    def drain(self) -> None:
        """Takes nothing new from now on."""
        self.is_accepting = False
        self.admission.release(self)

    def remove_all(self) -> list[SequenceGroup]:
        """Empties `running`, `swapped` and `loading`; the groups are in no queue then."""
        groups = [*self.running, *self.swapped, *self.loading]
        for group in self.running:
            group.is_paused = False
        self.running, self.swapped, self.loading = [], [], {}
        self._slots_of, self.num_sequence_slots = {}, 0
        self.admission.release(self)
        return groups

    def _stop_running(self, group: SequenceGroup) -> None:
        self.running.remove(group)
        group.is_paused = False
        self.num_sequence_slots -= self._slots_of.pop(group)

    def check(self) -> None:
        """Asserts that each group is in the queue of its status, in order, and unfinished."""
        for queue, status in (
            (self.running, SequenceStatus.RUNNING),
            (self.swapped, SequenceStatus.SWAPPED),
            (self.loading, SequenceStatus.LOADING),
            (self.admission, SequenceStatus.WAITING),
        ):
            for group in queue:
                assert all(seq.status is status for seq in group.unfinished), group.request_id
                assert group.unfinished, f"{group.request_id} has ended and is queued"
        for group in (*self.admission, *self.loading):
            assert not any(seq.block_table for seq in group.sequences), group.request_id
        for groups in (self.running, self.swapped):
            assert groups == sorted(groups, key=rank_of), "out of order"
        assert self._slots_of == {group: group.num_reserved_sequences for group in self.running}
        assert self.num_sequence_slots == sum(self._slots_of.values())
        self.admission.check()

"""Takes turns between the suspects of one worker and all other requests; see suspicion.py.

One suspect is tried at a time. A step of its own is sent when nothing is in flight, and nothing is
sent until it is answered, so that a loss meanwhile has one request in it. Every other step is that
of the other requests, which so wait for one step of a suspect at most.
"""

from signalbox_scheduler.planning.steps_in_flight import StepsInFlight
from signalbox_scheduler.queue.fair_queue import rank_of
from signalbox_scheduler.queue.worker_queues import GroupQueues
from signalbox_scheduler.requests.sequence_group import SequenceGroup
from signalbox_scheduler.requests.suspicion import Suspicion


class SuspectSchedule:
    """Knows which suspect runs on the worker, and whether it has the next turn."""

    def __init__(self, queues: GroupQueues, in_flight: StepsInFlight, *, worker_name: str) -> None:
        self._queues = queues
        self._in_flight = in_flight
        self._worker_name = worker_name
        self._admitted: list[SequenceGroup] = []
        """The suspect that came in last, until `current` has found that its turn is over."""

    @property
    def current(self) -> SequenceGroup | None:
        """The suspect that runs; None once it has been cleared, preempted or ended."""
        for group in self._admitted:
            if group.suspicion is not None and group in self._queues:
                return group
            self._admitted = []
        return None

    def begin(self, group: SequenceGroup) -> None:
        """Records the suspect that has come in."""
        self._admitted = [group]

    @property
    def has_any(self) -> bool:
        """True if a suspect waits, or may run on this worker."""
        return bool(self._admitted or self._queues.admission.suspects)

    @property
    def is_turn(self) -> bool:
        """True if the next step is that of a suspect, if there is one."""
        return not self._in_flight.last_is_alone

    @property
    def candidates(self) -> list[SequenceGroup]:
        """Waiting suspects that may be tried here, in queue order; none while one is tried."""
        suspects = self._queues.admission.suspects
        if not suspects or self.current is not None:
            return []
        return [group for group in sorted(suspects, key=rank_of) if self.may_try(group)]

    def may_try(self, group: SequenceGroup) -> bool:
        """Returns whether a suspect that waits may come in here when its turn comes."""
        assert group.suspicion is not None
        return self.current is None and self._worker_name not in group.suspicion.shunned

    @property
    def has_work(self) -> bool:
        """True if there is a suspect to be tried."""
        return self.current is not None or bool(self.candidates)

    @property
    def must_wait(self) -> bool:
        """True if no step may be sent while those in flight are not answered."""
        if not self._in_flight or not (self._admitted or self._queues.admission.suspects):
            return False
        if any(plan.is_alone for plan in self._in_flight):
            return True
        return self.is_turn and self.has_work


def pop_cleared(group: SequenceGroup) -> Suspicion | None:
    """Ends the suspicion of a group that has computed all that was in flight at the loss."""
    suspicion, seqs = group.suspicion, group.unfinished
    if suspicion is None or not seqs or any(seq.num_remaining_tokens > 1 for seq in seqs):
        return None
    if max(seq.num_computed_tokens for seq in seqs) < suspicion.position:
        return None
    return group.pop_suspicion()

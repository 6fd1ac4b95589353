"""Which running groups go from which worker to which: those of a draining one to any with room."""

from dataclasses import dataclass, field

from scheduler_svc.kv_moves.worker_handovers import WorkerHandovers
from scheduler_svc.requests.sequence_group import SequenceGroup


@dataclass(slots=True)
class Handovers:
    """The workers of the cluster that hand groups over, in the order in which they joined."""

    members: list[WorkerHandovers] = field(default_factory=list)

    def join(self, worker: WorkerHandovers) -> None:
        self.members.append(worker)
        worker.find_taker = self.begin_anywhere

    def leave(self, worker: WorkerHandovers, now: float) -> None:
        """Takes a worker out that is gone; its groups are where they were."""
        self.members.remove(worker)
        for handover in [*worker.coming.values(), *worker.leaving.values()]:
            handover.taker.give_up(handover, now)

    def begin_anywhere(self, group: SequenceGroup, owner: WorkerHandovers, now: float) -> bool:
        """Begins to hand a group over to the worker with most room that takes it, if any does.

        A worker that computes prompts is the last choice, and no choice of another one.
        """
        takers = [
            worker
            for worker in self.members
            if worker is not owner and not (owner.only_prefills and worker.only_prefills)
        ]
        takers.sort(key=lambda worker: (worker.only_prefills, -worker.blocks.gpu.num_free))
        return any(taker.reserve(group, owner, now) for taker in takers)

"""State of a cluster as watchers know it, and frames of what has changed since."""

import itertools

from signalbox_protos.scheduler.v1 import watch_pb2 as pb
from signalbox_scheduler.service.reports.insight_codec import nanoseconds
from signalbox_scheduler.service.reports.worker_frame_codec import WorkerPicture
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop

Frame = pb.Frame


class ClusterPicture:
    """A cluster as watchers know it; observes its workers until `close`."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._numbers = itertools.count(1)
        self._workers: dict[StepLoop, WorkerPicture] = {}
        self._num_waiting = -1
        self._num_wrong = 0
        self._starting: list[str] = []

    def close(self) -> None:
        """Lets the workers be observed no more."""
        while self._workers:
            self._workers.popitem()[1].close()

    def difference(self, now: float) -> Frame | None:
        """Returns what has changed since the last call, all at the first; None if nothing has."""
        frame = Frame()
        loops = self._cluster.step_loops
        for loop in self._workers.keys() - set(loops):
            worker = self._workers.pop(loop)
            worker.close()
            frame.left_workers.append(worker.number)
        for loop in loops:
            if (picture := self._workers.get(loop)) is None:
                picture = WorkerPicture(next(self._numbers), loop.scheduler)
                self._workers[loop] = picture
            if (changed := picture.difference(self._cluster.roles.of(loop))) is not None:
                frame.workers.append(changed)
        if (num_waiting := len(self._cluster.admission)) != self._num_waiting:
            frame.num_waiting = self._num_waiting = num_waiting
        if (num_wrong := self._cluster.audits.log.num_different.total()) != self._num_wrong:
            frame.num_wrong = self._num_wrong = num_wrong
        if (starting := self._cluster.starting_workers.phases()) != self._starting:
            self._starting = starting
            frame.starting.CopyFrom(pb.StartingWorkers(phases=starting))
        if not frame.ListFields():
            return None
        frame.at_ns = nanoseconds(now)
        return frame

    def full(self, now: float) -> Frame:
        """Returns all that was told, as of the last difference."""
        return Frame(
            at_ns=nanoseconds(now),
            is_full=True,
            num_waiting=self._num_waiting,
            num_wrong=self._num_wrong,
            starting=pb.StartingWorkers(phases=self._starting),
            workers=[worker.full() for worker in self._workers.values()],
        )

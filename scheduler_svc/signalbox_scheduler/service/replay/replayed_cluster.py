"""Tells fresh schedulers what recorded ones were told, at the recorded times.

Whatever they plan must be what was planned then. No network, no worker: the recorded answers are
the worker's.
"""

from collections import deque
from typing import NamedTuple

from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.updates import RequestUpdates
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import PeerIdentity, SchedulerConfig
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.queue.grammar_queue import Constraint
from signalbox_scheduler.requests.sequence_ids import sequence_ids
from signalbox_scheduler.service.router_session import Session
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.factory import make_cluster, make_scheduler


class ReplayedWorker(NamedTuple):
    """A lease of the recording."""

    epoch: int
    loop: StepLoop
    preparations: deque[Preparation]
    """The constraint that the worker was asked to compile last."""


class ReplayedRouter(Session):
    """A router that no message is sent to."""

    def send(self, updates: RequestUpdates) -> None:
        for finished in updates.finished_requests:
            self._groups.pop(finished.handle, None)


class SimulatedClock:
    """Stands where it was set."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


class ReplayedCluster:
    """The cluster of a recording, and its workers and routers by their numbers in it."""

    def __init__(self, config: SchedulerConfig, *, next_seq_id: int, now: float) -> None:
        sequence_ids.next = next_seq_id
        self.clock = SimulatedClock()
        self.clock.now = now
        self.config = config
        self.cluster = make_cluster(config, clock=self.clock)
        self.workers: dict[int, ReplayedWorker] = {}
        self._routers: dict[int, ReplayedRouter] = {}

    def router(self, number: int) -> ReplayedRouter:
        if number not in self._routers:
            self._routers[number] = ReplayedRouter(self.cluster.requests, max_messages=0)
        return self._routers[number]

    def join(
        self,
        number: int,
        *,
        address: str,
        epoch: int,
        model: ModelInfo,
        capacity: WorkerCapacity,
        certified_name: str,
        role: WorkerRole,
    ) -> None:
        scheduler = make_scheduler(
            self.config,
            model=model,
            capacity=capacity,
            admission=self.cluster.admission,
            identity=PeerIdentity(address=address, epoch=epoch, certified_name=certified_name),
        )
        preparations = deque[Preparation](maxlen=1)
        loop = StepLoop(
            scheduler,
            send_updates=self.cluster.requests.send_updates,
            prepare=preparations.append,
        )
        loop.asked_role = role
        self.cluster.serve(model)
        self.workers[number] = ReplayedWorker(epoch, loop, preparations)
        self.cluster.join(loop)

    def drain(self, number: int) -> None:
        self.cluster.drain(self.workers[number].loop)

    def leave(self, number: int) -> None:
        self.cluster.leave(self.workers.pop(number).loop)

    def prepared(self, number: int, constraint: Constraint, *, fault: str) -> None:
        """Takes a worker's answer to what it was asked to compile."""
        self.workers[number].loop.prepared(constraint, fault=fault, now=self.clock.now)

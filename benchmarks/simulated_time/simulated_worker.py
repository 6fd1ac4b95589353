"""A worker in simulated time: it answers each plan when its cost has passed, by made-up tokens."""

import math
from functools import partial

from benchmarks.simulated_time.event_clock import EventClock
from benchmarks.simulated_time.peer_links import PeerLink, PeerLinks
from benchmarks.simulated_time.step_costs import StepCosts, StepWork
from signalbox_contract.columns import int32s, int64s
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.step_result import StepResult, StepTimings
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import PeerIdentity, SchedulerConfig
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_scheduler.workers.engine.step_loop import StepLoop
from signalbox_scheduler.workers.factory import make_scheduler

MESSAGE_S = 0.0005
"""Seconds that a message between scheduler and worker takes."""
TOKEN = 7
"""Token that each draw gives."""


class SimulatedWorker:
    """A step loop of the real scheduler, and the device that its steps occupy one after another."""

    def __init__(
        self,
        name: str,
        *,
        clock: EventClock,
        cluster: Cluster,
        config: SchedulerConfig,
        model: ModelInfo,
        capacity: WorkerCapacity,
        costs: StepCosts,
        links: PeerLinks,
        role: WorkerRole = WorkerRole.BOTH,
    ) -> None:
        self._clock = clock
        self._links = links
        self._peer_link = PeerLink()
        self._poll_at = math.inf
        self._costs = costs
        self._free_at = 0.0
        self._is_woken = self._is_gone = False
        scheduler = make_scheduler(
            config,
            model=model,
            capacity=capacity,
            admission=cluster.admission,
            identity=PeerIdentity(address=name, epoch=1 + len(cluster.step_loops)),
        )
        self.loop = StepLoop(
            scheduler,
            send_updates=cluster.requests.send_updates,
            prepare=lambda _: None,
            wake=self._wake,
            wake_all=cluster.wake,
        )
        self.loop.asked_role = role

    def leave(self) -> None:
        """Executes nothing any more."""
        self._is_gone = True
        self._links.leave(self._peer_link)

    def _wake(self) -> None:
        if not self._is_woken:
            self._is_woken = True
            self._clock.call_at(self._clock.now, self._fill)

    def _fill(self) -> None:
        self._is_woken = False
        if self._is_gone:
            return
        while (plan := self.loop.fill(self._clock.now)) is not None:
            self._start(plan)
        if (poll_at := self.loop.next_poll_at) < self._poll_at:
            self._poll_at = poll_at
            self._clock.call_at(poll_at, self._poll)

    def _poll(self) -> None:
        self._poll_at = math.inf
        self._fill()

    def _start(self, plan: StepPlan) -> None:
        """Takes a step in behind those before it."""
        duration_s = self._costs.step_s(work_of(plan, self.loop))
        begins_at = max(self._clock.now + MESSAGE_S, self._free_at)
        self._free_at = begins_at + duration_s
        if (moves := plan.store_moves) is not None:
            self._clock.call_at(begins_at, partial(self._links.begin, self._peer_link, moves))
        drawing = [seq_id for seq_id, n in zip(plan.seq_ids, plan.num_samples, strict=True) if n]
        result = StepResult(
            step_id=plan.step_id,
            seq_ids=int64s(drawing),
            token_ids=int32s([TOKEN] * len(drawing)),
            timings=StepTimings(forward_ns=int(1e9 * duration_s)),
        )
        self._clock.call_at(self._free_at + MESSAGE_S, partial(self._answer, result))

    def _answer(self, result: StepResult) -> None:
        if not self._is_gone:
            result.moves = self._peer_link.pop_ended()
            self.loop.complete(result, self._clock.now)
            self._fill()


def work_of(plan: StepPlan, loop: StepLoop) -> StepWork:
    """Returns what a step that has just been planned computes."""
    num_read = num_pairs = 0
    for seq, num_new in zip(plan.seqs, plan.num_new_tokens, strict=True):
        if num_new == 1:
            num_read += seq.num_tokens
        else:
            counters = loop.scheduler.counters(seq)
            end = counters.num_computed_tokens + counters.num_inflight_tokens
            num_pairs += num_new * end - num_new * (num_new - 1) // 2
    moves = plan.block_moves
    return StepWork(
        num_seqs=len(plan.seqs),
        num_tokens=plan.total_tokens,
        num_read=num_read,
        num_pairs=num_pairs,
        num_copied=len(moves.swap_in.src) + len(moves.swap_out.src),
    )

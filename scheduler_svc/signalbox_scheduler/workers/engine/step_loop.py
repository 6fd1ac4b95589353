"""Drives the steps of one worker without I/O: plans them ahead, and completes them in order.

The driver of a worker starts each step that `fill` returns, passes its result to `complete`, and
gives the worker up when the oldest step is overdue. The drivers are `Engine` over gRPC, the engine
of `LLM` in its process, and a replay, which starts nothing. All calls are for one thread.
"""

import math
from collections.abc import Callable

from signalbox_contract.step_result import StepResult
from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.insight import step_spans
from signalbox_scheduler.insight.recorder import UNRECORDED, WorkerRecorder
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.queue.grammar_queue import Constraint
from signalbox_scheduler.requests.open_spans import RequestTrace
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.transfers.pending_transfers import MAX_CANCEL_S
from signalbox_scheduler.workers.engine.scheduler import Scheduler

FIRST_GUESS_S_PER_TOKEN = 0.05
TIMEOUT_PER_PREDICTION = 10


def _nothing() -> None:
    """The wake-up of a driver that looks for work by itself."""


class StepLoop:
    """The steps of one worker, as its cluster and its driver see them.

    Args:
        send_updates: takes what each result means for requests.
        prepare: has the worker compile a structured output, and calls `prepared` afterwards.
        wake: makes the driver call `fill`, because there may be something to plan.
        wake_all: wakes all drivers, when this loop has returned a request to the shared queue.
        step_timeout_s: least time that a step is given; longer if its size predicts more.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        *,
        send_updates: Callable[[StepOutcome], None],
        prepare: Callable[[Preparation], None],
        wake: Callable[[], None] = _nothing,
        wake_all: Callable[[], None] = _nothing,
        step_timeout_s: float = math.inf,
        recorder: WorkerRecorder = UNRECORDED,
    ) -> None:
        self.scheduler = scheduler
        self.wake = wake
        self.recorder = recorder
        self.asked_role = WorkerRole.BOTH
        """Role with which the worker has joined; see roles.py."""
        self._send_updates = send_updates
        self._prepare = prepare
        self._wake_all = wake_all
        self._step_timeout_s = step_timeout_s
        self._s_per_token = FIRST_GUESS_S_PER_TOKEN

    @property
    def worker_name(self) -> str:
        return self.scheduler.worker_name

    @property
    def is_draining(self) -> bool:
        return not self.scheduler.is_accepting

    @property
    def is_drained(self) -> bool:
        """True if the worker may leave: it takes nothing new, and what it had has ended."""
        return self.is_draining and not self.scheduler.has_unfinished

    def fill(self, now: float) -> StepPlan | None:
        """Plans a step for the caller to start.

        Returns None if enough steps are in flight, or if nothing can be computed at the moment.
        """
        scheduler = self.scheduler
        if scheduler.has_enough_in_flight:
            return None
        self.recorder.planned(now)
        queues = scheduler.state.queues
        num_returned = queues.num_returned
        plan = scheduler.schedule(now)
        if queues.num_returned > num_returned:
            self._wake_all()  # an idle worker may have room for the preempted request
        self._send_failed()
        if scheduler.grammars.to_send and (preparation := scheduler.grammars.pop_preparation()):
            self._prepare(preparation)
        if plan is not None and RequestTrace.num_open:
            step_spans.begin(plan, worker=self.worker_name)
        return plan

    def complete(self, result: StepResult, now: float) -> None:
        """Takes the result of the oldest step in flight."""
        plan = self.scheduler.in_flight[0]
        self._learn(plan, now)
        self.recorder.answered(now)
        queues = self.scheduler.state.queues
        num_returned = queues.num_returned
        outcome = self.scheduler.update(result, now)
        if RequestTrace.num_open or plan.trace is not None:
            step_spans.end(plan, result, outcome, worker=self.worker_name)
        self._send_updates(outcome)
        if result.moves and queues.num_returned > num_returned:
            self._wake_all()  # requests wait again, with what has arrived for them or without

    def prepared(self, constraint: Constraint, *, fault: str, now: float) -> None:
        """Takes the worker's answer about a structured output; an empty fault is success."""
        self.recorder.prepared(constraint, fault, now)
        self.scheduler.grammars.prepared(constraint, fault=fault)
        self._send_failed()
        self.wake()
        self._wake_all()

    def seconds_left(self, now: float) -> float:
        """Returns the time until the oldest step is overdue, which means that the worker hangs.

        So does a move that was called off and does not end. Infinite if there is neither.
        """
        left_s = self.scheduler.state.connector.overdue_at - now
        if self.scheduler.in_flight:
            left_s = min(left_s, self._oldest_due_at - now)
        return left_s

    def overdue(self, now: float) -> str:
        """Says what is overdue, once no time is left."""
        if self.scheduler.in_flight and now >= self._oldest_due_at:
            step_id = self.scheduler.in_flight[0].step_id
            return f"step {step_id} was not answered within {self.oldest_limit_s:.1f} s"
        return f"a move of KV blocks that was called off has not ended within {MAX_CANCEL_S:.0f} s"

    @property
    def next_poll_at(self) -> float:
        """Time at which `fill` is to be called again though nothing wakes the driver.

        Infinite while a step is in flight, and if nothing moves to or from the worker's store and
        no audit waits for its time.
        """
        state = self.scheduler.state
        if state.in_flight:
            return math.inf
        return min(state.connector.next_poll_at, state.audits.next_poll_at)

    @property
    def oldest_limit_s(self) -> float:
        """Time that the oldest step in flight is given."""
        predicted_s = self._s_per_token * self.scheduler.in_flight[0].total_tokens
        return max(self._step_timeout_s, TIMEOUT_PER_PREDICTION * predicted_s)

    @property
    def _oldest_due_at(self) -> float:
        return self.scheduler.in_flight.oldest_began_at + self.oldest_limit_s

    def abandon(self) -> None:
        """Ends the spans of the steps in flight, because the worker is lost."""
        step_spans.abandon(self.scheduler.in_flight, why="WORKER_LOST")

    def _send_failed(self) -> None:
        if failed := self.scheduler.pop_failed():
            self._send_updates(StepOutcome(ended=failed))

    def _learn(self, plan: StepPlan, now: float) -> None:
        """Follows how long a token takes, quickly up and slowly down."""
        seconds = (now - self.scheduler.in_flight.oldest_began_at) / max(1, plan.total_tokens)
        self._s_per_token = max(seconds, 0.99 * self._s_per_token + 0.01 * seconds)

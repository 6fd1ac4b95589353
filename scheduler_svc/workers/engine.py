"""Drives one worker: plans a step while another runs, sends it, takes the answers.

Only the tasks of an engine plan with the worker's `Scheduler` and update it, and one of them sends
at a time; whatever others do to it (abort, stop) they do on the same event loop, between awaits.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from contract.step_result import StepResult
from scheduler_svc.insight import step_spans
from scheduler_svc.planning.plan import StepPlan
from scheduler_svc.planning.worker_grammars import Preparation
from scheduler_svc.recorder import UNRECORDED, WorkerRecorder
from scheduler_svc.results.step_outcome import StepOutcome
from scheduler_svc.scheduler import Scheduler
from scheduler_svc.workers.worker_client import WorkerLostError

FIRST_GUESS_S_PER_TOKEN = 0.05
TIMEOUT_PER_PREDICTION = 10


class StepChannel(Protocol):
    """Where steps go; `WorkerClient` is one."""

    @property
    def address(self) -> str: ...

    async def send(self, plan: StepPlan) -> None: ...

    async def read(self) -> StepResult: ...

    async def prepare(self, preparation: Preparation) -> str: ...


class Engine:
    """The loop of one worker.

    Args:
        send_updates: takes what each answer means for requests.
        wake_all: lets every engine look for work, when this one has set a request back.
        max_steps_in_flight: 2 keeps the worker busy while the next step is planned.
    """

    def __init__(
        self,
        *,
        worker: StepChannel,
        scheduler: Scheduler,
        send_updates: Callable[[StepOutcome], None],
        wake_all: Callable[[], None] = lambda: None,
        max_steps_in_flight: int = 2,
        step_timeout_s: float = 10.0,
        recorder: WorkerRecorder = UNRECORDED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.worker = worker
        self.scheduler = scheduler
        self.recorder = recorder
        self._send_updates = send_updates
        self._wake_all = wake_all
        self._max_steps_in_flight = max_steps_in_flight
        self._step_timeout_s = step_timeout_s
        self._clock = clock
        self._wakeup = asyncio.Event()
        self._to_prepare: asyncio.Queue[Preparation] = asyncio.Queue()
        self._is_sending = False
        self._s_per_token = FIRST_GUESS_S_PER_TOKEN
        self._oldest_sent_at = 0.0

    @property
    def is_draining(self) -> bool:
        return not self.scheduler.is_accepting

    @property
    def is_drained(self) -> bool:
        """Whether the worker may go: it takes nothing new, and what it had has ended."""
        return self.is_draining and not self.scheduler.has_unfinished

    def wake(self) -> None:
        """Makes the loop look again: there may be something to plan."""
        self._wakeup.set()

    async def run(self) -> None:
        """Runs until it is cancelled. Raises WorkerLostError."""
        parts = self._send_when_woken(), self._read_answers(), self._prepare(), self._watch()
        tasks = [asyncio.create_task(part) for part in parts]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()
        finally:
            for task in tasks:
                task.cancel()
            step_spans.abandon(self.scheduler.inflight, why="WORKER_LOST")
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_when_woken(self) -> None:
        while True:
            self._wakeup.clear()
            await self._send_steps()
            await self._wakeup.wait()

    async def _send_steps(self) -> None:
        """Sends what there is to send; does nothing while somebody does, who looks again then."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            await self._plan_and_send()
        finally:
            self._is_sending = False

    async def _plan_and_send(self) -> None:
        while len(self.scheduler.inflight) < self._max_steps_in_flight:
            now = self._clock()
            self.recorder.planned(now)
            num_recomputes = self.scheduler.num_recomputes
            plan = self.scheduler.schedule(now)
            if self.scheduler.num_recomputes > num_recomputes:
                self._wake_all()  # an idle worker may have room for who was set back
            if failed := self.scheduler.pop_failed():
                self._send_updates(StepOutcome(ended=failed))
            if preparation := self.scheduler.grammars.pop_preparation():
                self._to_prepare.put_nowait(preparation)
            if plan is None:
                return
            if len(self.scheduler.inflight) == 1:
                self._oldest_sent_at = now
            step_spans.begin(plan, worker=self.worker.address)
            await self.worker.send(plan)

    async def _read_answers(self) -> None:
        while True:
            result = await self.worker.read()
            now = self._clock()
            self._learn(now)
            self.recorder.answered(now)
            plan, outcome = self.scheduler.inflight[0], self.scheduler.update(result, now)
            step_spans.end(plan, result, outcome, worker=self.worker.address)
            self._send_updates(outcome)
            await self._send_steps()  # here: to wake another task costs a turn of the event loop

    async def _prepare(self) -> None:
        """Has structured outputs compiled, one at a time, while steps go on."""
        while True:
            preparation = await self._to_prepare.get()
            fault = await self.worker.prepare(preparation)
            self.recorder.prepared(preparation.constraint, fault, self._clock())
            self.scheduler.grammars.prepared(preparation.constraint, fault=fault)
            if failed := self.scheduler.pop_failed():
                self._send_updates(StepOutcome(ended=failed))
            self._wakeup.set()
            self._wake_all()

    def _learn(self, now: float) -> None:
        """Follows how long a token takes, quickly up and slowly down."""
        num_tokens = max(1, self.scheduler.inflight[0].total_tokens)
        seconds = (now - self._oldest_sent_at) / num_tokens
        self._s_per_token = max(seconds, 0.99 * self._s_per_token + 0.01 * seconds)
        self._oldest_sent_at = now

    async def _watch(self) -> None:
        """Raises WorkerLostError when a step is overdue, which means that the worker hangs.

        Sleeps for as long as no step can become overdue; a timer for each step would cost more.
        """
        while True:
            inflight = self.scheduler.inflight
            if not inflight:
                await asyncio.sleep(self._step_timeout_s)
                continue
            oldest, limit_s = inflight[0], self._limit_s(inflight[0])
            left_s = self._oldest_sent_at + limit_s - self._clock()
            if left_s <= 0:
                raise WorkerLostError(
                    f"step {oldest.step_id} was not answered within {limit_s:.1f} s"
                )
            await asyncio.sleep(left_s)

    def _limit_s(self, step: StepPlan) -> float:
        predicted_s = self._s_per_token * step.total_tokens
        return max(self._step_timeout_s, TIMEOUT_PER_PREDICTION * predicted_s)

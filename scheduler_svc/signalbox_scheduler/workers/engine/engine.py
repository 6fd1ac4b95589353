"""Runs the step loop of one worker as tasks: sends steps, reads results, compiles, watches.

One task sends at a time. Other code that changes the worker's `Scheduler` (abort, stop) does so on
the same event loop, between awaits.
"""

import asyncio
import contextlib
import math
import time
from collections.abc import Callable
from typing import Protocol

from signalbox_contract.step_result import StepResult
from signalbox_scheduler.insight.recorder import UNRECORDED, WorkerRecorder
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.planning.worker_grammars import Preparation
from signalbox_scheduler.results.step_outcome import StepOutcome
from signalbox_scheduler.workers.engine.lease_client import WorkerLostError
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_scheduler.workers.engine.step_loop import StepLoop


class StepChannel(Protocol):
    """Interface to a worker that executes steps; `LeaseClient` is one."""

    async def send(self, plan: StepPlan) -> None: ...

    async def read(self) -> StepResult: ...

    async def prepare(self, preparation: Preparation) -> str: ...


class Engine:
    """The tasks of one worker around its step loop; see `StepLoop` for the arguments."""

    def __init__(
        self,
        *,
        worker: StepChannel,
        scheduler: Scheduler,
        send_updates: Callable[[StepOutcome], None],
        wake_all: Callable[[], None] = lambda: None,
        step_timeout_s: float = 10.0,
        recorder: WorkerRecorder = UNRECORDED,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._worker = worker
        self._clock = clock
        self._step_timeout_s = step_timeout_s
        self._wakeup = asyncio.Event()
        self._to_prepare: asyncio.Queue[Preparation] = asyncio.Queue()
        self._is_sending = False
        self.loop = StepLoop(
            scheduler,
            send_updates=send_updates,
            prepare=self._to_prepare.put_nowait,
            wake=self._wakeup.set,
            wake_all=wake_all,
            step_timeout_s=step_timeout_s,
            recorder=recorder,
        )

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
            self.loop.abandon()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _send_when_woken(self) -> None:
        while True:
            self._wakeup.clear()
            await self._send_steps()
            await self._until_woken()

    async def _until_woken(self) -> None:
        """Waits for something to plan, or until the worker is asked for the ends of moves."""
        if (poll_at := self.loop.next_poll_at) == math.inf:
            await self._wakeup.wait()
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, poll_at - self._clock())):
                await self._wakeup.wait()

    async def _send_steps(self) -> None:
        """Sends what there is to send; does nothing while another task does, which looks again."""
        if self._is_sending:
            return
        self._is_sending = True
        try:
            while (plan := self.loop.fill(self._clock())) is not None:
                await self._worker.send(plan)
        finally:
            self._is_sending = False

    async def _read_answers(self) -> None:
        while True:
            result = await self._worker.read()
            self.loop.complete(result, self._clock())
            await self._send_steps()  # here: to wake another task costs a turn of the event loop
            if self.loop.next_poll_at < math.inf:
                self._wakeup.set()

    async def _prepare(self) -> None:
        """Has structured outputs compiled, one at a time, while steps go on."""
        while True:
            preparation = await self._to_prepare.get()
            fault = await self._worker.prepare(preparation)
            self.loop.prepared(preparation.constraint, fault=fault, now=self._clock())

    async def _watch(self) -> None:
        """Raises WorkerLostError when a step is overdue.

        Sleeps while no step can become overdue; a timer for each step would cost more.
        """
        while True:
            left_s = self.loop.seconds_left(self._clock())
            if left_s <= 0:
                raise WorkerLostError(self.loop.overdue(self._clock()))
            await asyncio.sleep(min(left_s, self._step_timeout_s))

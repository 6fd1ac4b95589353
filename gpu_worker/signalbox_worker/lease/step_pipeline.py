"""Steps that a device, or pipeline stages, compute while the host goes on.

A step is launched before the draws of the one before it are known, if that keeps them on the
device: its tokens are then fed forward there. Penalties, rules and grammars read what was drawn:
their rows are completed when the device computes the step's forward pass, in which it does not
wait for the host. Where a token is needed before (a fork copies it), the whole step waits. Stages
draw at their end, so that a step with one of these tokens waits, and others do not. Results are
taken in the order of the steps, so the table of sequences sees what it would have seen without all
this.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import numpy as np

from signalbox_contract.step import Step
from signalbox_contract.step_result import StepResult
from signalbox_worker.batch.batch import Batch, BatchOutput, Launched
from signalbox_worker.lease.execution_thread import Unfinished
from signalbox_worker.lease.sequences.sequence_table import BookedBatch, SequenceTable
from signalbox_worker.runner.runner import Runner

FinishResult = Callable[[StepResult, BatchOutput], StepResult]
"""Adds to a result, and returns, what the table of sequences does not know."""
OnError = Callable[[Exception], Exception]
"""Takes the error of a device; returns the error that the sender of the step receives."""


class StepInFlight(Unfinished[StepResult]):
    """A launched step; it has an outcome once it is collected."""

    outcome: StepResult | Exception
    __slots__ = (
        "_pipeline",
        "booked",
        "finish_result",
        "launched",
        "on_error",
        "outcome",
        "samples",
    )

    def __init__(
        self,
        pipeline: "StepPipeline",
        launched: Launched,
        booked: BookedBatch,
        finish_result: FinishResult,
        on_error: OnError,
    ) -> None:
        self._pipeline = pipeline
        self.launched = launched
        self.booked = booked
        self.finish_result = finish_result
        self.on_error = on_error
        self.samples: BatchOutput | None = None

    def wait(self) -> None:
        self.launched.wait()

    def finish(self) -> StepResult:
        self._pipeline.collect_until(self)
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class StepPipeline:
    """Steps in flight of one lease, oldest first; used on the execution thread."""

    def __init__(self, runner: Runner, table: SequenceTable) -> None:
        self._runner = runner
        self._table = table
        self._steps: deque[StepInFlight] = deque()
        self._newest: StepInFlight | None = None
        """Launched last; it may have been collected."""

    def __len__(self) -> int:
        return len(self._steps)

    def make_way(self, step: Step) -> None:
        """Collects the samples that must be known before `step` is applied."""
        if not self._steps:
            return
        last = self._steps[-1]
        if not last.launched.can_feed:
            self._collect_named(step)
        elif self._table.must_know(step):
            self.collect_until(last)
        elif len(self._steps) > 1:
            self.collect_until(self._steps[-2])

    def _collect_named(self, step: Step) -> None:
        """Collects the steps that draw for sequences of `step`; all of them if it has forks."""
        rows = self._table.rows_of(step)
        for one in reversed(self._steps):
            if step.forks or np.isin(one.booked.rows, rows).any():
                self.collect_until(one)
                return

    def launch(self, batch: Batch, finish_result: FinishResult, on_error: OnError) -> StepInFlight:
        """Begins the batch that was applied last; raises the runner's immediate errors."""
        if batch.complete_rows is not None:
            launched = self._runner.launch(
                replace(batch, complete_rows=partial(self._complete_rows, batch))
            )
        else:
            launched = self._runner.launch(batch)
        step = StepInFlight(self, launched, self._table.book(), finish_result, on_error)
        self._steps.append(step)
        self._newest = step
        return step

    def know(self, batch: Batch) -> None:
        """Collects all, and writes the tokens that the batch names as draws into it."""
        samples = self._collect_all()
        batch.complete()
        if batch.fed_from is None or samples is None:
            return
        drawn = samples.token_ids.clip(min=0)
        is_fed = batch.fed_from >= 0
        batch.token_ids[is_fed] = drawn[batch.fed_from[is_fed]]
        batch.fed_from = None

    def _complete_rows(self, batch: Batch) -> None:
        self._collect_all()
        batch.complete()

    def _collect_all(self) -> BatchOutput | None:
        """Returns the samples of the newest step, if there is one; raises its error."""
        if self._newest is None:
            return None
        self.collect_until(self._newest)
        if isinstance(self._newest.outcome, Exception):
            raise self._newest.outcome
        return self._newest.samples

    def collect_until(self, step: StepInFlight) -> None:
        """Takes the samples of all steps up to this one."""
        while step in self._steps:
            self._collect(self._steps.popleft())

    def _collect(self, step: StepInFlight) -> None:
        try:
            step.samples = step.launched.samples()
            result = self._table.append_tokens(step.samples, step.booked)
            step.outcome = step.finish_result(result, step.samples)
        except Exception as error:
            step.outcome = step.on_error(error)

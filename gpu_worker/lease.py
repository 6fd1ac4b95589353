"""One lease of the worker: the sequences, and the runner's cache, of one scheduler's epoch.

Steps are executed here, on the execution thread. A lease that was closed, because the scheduler
was lost or initialised the cache anew, executes nothing more.
"""

import logging
import time

import numpy as np

from gpu_worker import isolation
from gpu_worker.grammars import Grammars
from gpu_worker.sequences import Outcome, SequenceTable
from gpu_worker.step import Batch, CacheCapacity, Overlapping, Runner, Samples, Step, StepResult
from gpu_worker.step_log import StepLog
from gpu_worker.token_limit import TokenLimit
from gpu_worker.tracing import step_span
from rpc.errors import Aborted, FailedPrecondition, Internal

logger = logging.getLogger(__name__)


class Lease:
    """Executes the steps of one epoch, in order."""

    def __init__(
        self,
        *,
        epoch: int,
        runner: Runner,
        capacity: CacheCapacity,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        grammars: Grammars,
    ) -> None:
        self.epoch = epoch
        self.log = StepLog()
        self.table = SequenceTable(
            model=runner.model,
            capacity=capacity,
            num_gpu_blocks=num_gpu_blocks,
            num_cpu_blocks=num_cpu_blocks,
            grammars=grammars,
        )
        self._runner = runner
        self._limit = TokenLimit(capacity.max_num_batched_tokens)
        self._num_executed = 0
        self._is_open = True

    def close(self) -> None:
        """Refuses the steps that are not running yet. Safe from any thread."""
        self._is_open = False

    def execute(self, step: Step, *, arrived_ns: int) -> StepResult:
        """Executes the next step.

        Raises RpcError, having changed nothing, if the step is not allowed.
        """
        if not self._is_open:
            raise Aborted(f"the lease of epoch {self.epoch:#x} has ended")
        if step.step_id != self._num_executed + 1:  # the step before it was refused
            raise FailedPrecondition(
                f"step {step.step_id} sent, step {self._num_executed + 1} expected"
            )
        wait_ns = time.monotonic_ns() - arrived_ns
        with step_span(step) as span:
            start_ns = time.time_ns()
            batch = self.table.apply(step)
            self._num_executed = step.step_id
            try:
                result = self._compute(step, batch)
            except Exception as error:
                logger.exception("step %d failed; its lease ends", step.step_id)
                self.close()
                raise Internal("a step failed half-way; the cache is lost") from error
            result.wait_ns = wait_ns
            span.set_result(result, start_ns=start_ns)
        return result

    def _compute(self, step: Step, batch: Batch) -> StepResult:
        """Computes an applied step; raises if more than the step's sequences are harmed."""
        swap_ns = self._move_blocks(step)
        samples = _no_samples()
        if len(batch.token_ids):
            samples = isolation.execute(self._runner, batch, self._limit)
        result = _result(step, self.table.take(samples), samples, swap_ns=swap_ns)
        result.max_num_batched_tokens = self._limit.lowered
        return result

    def _move_blocks(self, step: Step) -> int:
        """Moves blocks, once, of sequences that need not be in the step: none could be failed.

        Returns the nanoseconds that this takes, beside the forward pass or not.
        """
        start = time.monotonic_ns()
        if len(step.swap_out.src):
            self._runner.swap_out(step.swap_out)
        if len(step.swap_in.src):
            self._runner.swap_in(step.swap_in)
        if len(step.copy.src):
            self._runner.copy(step.copy)
        called_ns = time.monotonic_ns() - start
        has_swaps = len(step.swap_out.src) or len(step.swap_in.src)
        if has_swaps and isinstance(self._runner, Overlapping):
            return called_ns + self._runner.take_copy_ns()
        return called_ns


def _no_samples() -> Samples:
    return Samples(token_ids=np.empty(0, dtype=np.int32))


def _result(step: Step, outcome: Outcome, samples: Samples, *, swap_ns: int) -> StepResult:
    return StepResult(
        epoch=step.epoch,
        step_id=step.step_id,
        seq_ids=outcome.seq_ids,
        token_ids=outcome.token_ids,
        logprobs=outcome.logprobs,
        prompt_logprobs=outcome.prompt_logprobs,
        failures=outcome.failures,
        swap_ns=swap_ns,
        forward_ns=samples.forward_ns,
        sample_ns=samples.sample_ns,
    )

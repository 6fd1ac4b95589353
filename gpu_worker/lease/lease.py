"""One lease of the worker: the sequences, and the runner's cache, of one scheduler's epoch.

Steps are executed here, on the execution thread. A lease that was closed, because the scheduler was
lost or initialised the cache anew, executes nothing more.
"""

import logging
import time
from functools import partial

import numpy as np

from contract.columns import int32s, int64s
from contract.errors import Aborted, FailedPrecondition, Internal
from contract.model import WorkerCapacity
from contract.step import Step
from contract.step_result import StepResult, StepTimings
from gpu_worker.batch.batch import Batch, BatchOutput
from gpu_worker.batch.runner_protocol import Launching, Runner
from gpu_worker.device.device_errors import is_device_lost
from gpu_worker.execution_thread import Unfinished
from gpu_worker.insight.step_spans import StepSpan
from gpu_worker.lease import failure_isolation
from gpu_worker.lease.block_move_stage import BlockMoveStage
from gpu_worker.lease.section_stage import SectionStage
from gpu_worker.lease.step_log import StepLog
from gpu_worker.lease.step_pipeline import MakeResult, OnError, StepInFlight, StepPipeline
from gpu_worker.lease.token_limit import TokenLimit
from gpu_worker.sampling.grammars import Grammars
from gpu_worker.sequences.sequence_table import SampledTokens, SequenceTable

logger = logging.getLogger(__name__)


class Lease:
    """Executes the steps of one epoch, in order."""

    def __init__(
        self,
        *,
        epoch: int,
        runner: Runner,
        capacity: WorkerCapacity,
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
            grammars=grammars,
        )
        pools = {"num_gpu_blocks": num_gpu_blocks, "num_cpu_blocks": num_cpu_blocks}
        self._stages: tuple[SectionStage, ...] = (BlockMoveStage(runner, **pools),)
        self._runner = runner
        self._limit = TokenLimit(capacity.max_num_batched_tokens)
        self._pipeline: StepPipeline | None = None
        if isinstance(runner, Launching) and runner.launches:
            self._pipeline = StepPipeline(runner, self.table)
        self._num_executed = 0
        self._is_open = True

    def revoke(self) -> None:
        """Refuses the steps that are not running yet. Safe from any thread."""
        self._is_open = False

    def execute(self, step: Step, *, arrived_ns: int) -> StepResult | Unfinished[StepResult]:
        """Executes the next step, or launches it.

        Raises RpcError, having changed nothing, if the step is not allowed.
        """
        if self._pipeline is not None:
            self._pipeline.make_way(step)  # a failure there revokes the lease
        if not self._is_open:
            raise Aborted(f"the lease of epoch {self.epoch:#x} has ended")
        if step.step_id != self._num_executed + 1:  # the step before it was refused
            raise FailedPrecondition(
                f"step {step.step_id} sent, step {self._num_executed + 1} expected"
            )
        wait_ns = time.monotonic_ns() - arrived_ns
        span, start_ns = StepSpan.begin(step), time.time_ns()
        with span.current():
            for stage in self._stages:
                stage.check(step)
            batch = self.table.apply(step)
            self._num_executed = step.step_id
            try:
                swap_ns = sum(stage.apply(step) for stage in self._stages)
                make_result = partial(
                    _result,
                    step,
                    span,
                    start_ns=start_ns,
                    wait_ns=wait_ns,
                    swap_ns=swap_ns,
                    limit=self._limit,
                )
                return self._compute(batch, make_result, on_error=partial(self._fail_later, span))
            except Exception as error:
                raise self._fail(error) from error

    def _compute(
        self, batch: Batch, make_result: MakeResult, on_error: OnError
    ) -> StepResult | Unfinished[StepResult]:
        """Computes an applied step; raises if more than the step's sequences are harmed."""
        samples = _no_samples()
        if len(batch.token_ids):
            launched = self._launch(batch, make_result, on_error)
            if launched is not None:
                return launched
            samples = failure_isolation.execute(self._runner, batch, self._limit)
        return make_result(self.table.append_tokens(samples), samples)

    def _launch(
        self, batch: Batch, make_result: MakeResult, on_error: OnError
    ) -> StepInFlight | None:
        """Returns None where the batch must be computed at once; its tokens are known then."""
        if self._pipeline is None:
            return None
        try:
            if len(batch.token_ids) <= self._limit.tokens:
                launched = self._pipeline.launch(batch, make_result, on_error)
                self._limit.count_step()
                return launched
        except Exception as error:  # isolation will say what it is
            if is_device_lost(error):
                raise
            logger.warning("a step cannot be launched: %s", str(error).partition("\n")[0])
        self._pipeline.know(batch)
        return None

    def _fail_later(self, span: StepSpan, error: Exception) -> Exception:
        """Ends the span of a launched step by an error, and returns the error of the lease."""
        span.fail(error)
        return self._fail(error)

    def _fail(self, error: Exception) -> Exception:
        """Ends the lease after an error that harms more than some sequences."""
        logger.error("step %d failed; its lease ends", self._num_executed, exc_info=error)
        self.revoke()
        failure = Internal("a step failed half-way; the cache is lost")
        failure.__cause__ = error
        return failure


def _no_samples() -> BatchOutput:
    return BatchOutput(token_ids=np.empty(0, dtype=np.int32))


def _result(
    step: Step,
    span: StepSpan,
    outcome: SampledTokens,
    samples: BatchOutput,
    *,
    start_ns: int,
    wait_ns: int,
    swap_ns: int,
    limit: TokenLimit,
) -> StepResult:
    result = StepResult(
        epoch=step.epoch,
        step_id=step.step_id,
        seq_ids=int64s(outcome.seq_ids),
        branches=None if outcome.branches is None else int32s(outcome.branches.astype(np.int32)),
        token_ids=int32s(outcome.token_ids),
        logprobs=outcome.logprobs,
        prompt_logprobs=outcome.prompt_logprobs,
        failures=outcome.failures,
        timings=StepTimings(wait_ns, swap_ns, samples.forward_ns, samples.sample_ns),
        max_num_batched_tokens=limit.lowered,
    )
    span.end(result, start_ns=start_ns)
    return result

"""One lease of the worker: the sequences, and the runner's cache, of one scheduler's epoch.

Steps are executed here, on the execution thread. A lease that was closed, because the scheduler was
lost or initialised the cache anew, executes nothing more.
"""

import logging
import time
from functools import partial

import numpy as np

from signalbox_contract.errors import Aborted, FailedPrecondition, Internal
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.step import Step
from signalbox_contract.step_result import StepResult, StepTimings
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.device.device_errors import is_device_lost
from signalbox_worker.kv.store.block_transfers import BlockTransfers
from signalbox_worker.lease.execution_thread import Unfinished
from signalbox_worker.lease.failure_isolation import Fault, execute_parts, fault_of
from signalbox_worker.lease.section_handlers import (
    BlockMoveHandler,
    SectionHandler,
    TransferHandler,
)
from signalbox_worker.lease.sequences.sequence_table import SequenceTable
from signalbox_worker.lease.step_log import NUM_KEPT_ANSWERS, StepLog
from signalbox_worker.lease.step_pipeline import FinishResult, OnError, StepInFlight, StepPipeline
from signalbox_worker.lease.step_spans import StepSpan
from signalbox_worker.lease.token_limit import TokenLimit
from signalbox_worker.runner.runner import Runner
from signalbox_worker.sampling.grammars import Grammars

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
        self.log = StepLog(max(capacity.max_steps_in_flight, NUM_KEPT_ANSWERS))
        self.table = SequenceTable(
            model=runner.model,
            capacity=capacity,
            num_gpu_blocks=num_gpu_blocks,
            grammars=grammars,
            adapter_slots=runner.adapter_slots,
            proposer=runner.make_proposer(),
        )
        pools = {"num_gpu_blocks": num_gpu_blocks, "num_cpu_blocks": num_cpu_blocks}
        self._transfers: BlockTransfers = runner.transfers
        self._handlers: tuple[SectionHandler, ...] = (
            BlockMoveHandler(runner, **pools),
            TransferHandler(runner.transfers, num_cpu_blocks=num_cpu_blocks),
        )
        self._runner = runner
        pooling = runner.model.pooling
        self._limit = TokenLimit(
            capacity.max_num_batched_tokens,
            cuts_sequences=pooling is None or not pooling.is_bidirectional,
        )
        self._capacity = capacity
        self._launches = runner.launches
        self._pipeline = StepPipeline(runner, self.table)
        self._num_executed = 0
        self._is_open = True

    def revoke(self) -> None:
        """Refuses the steps that are not running yet. Safe from any thread."""
        self._is_open = False
        self._transfers = BlockTransfers()  # the runner's may be those of another lease by now

    def execute(self, step: Step, *, arrived_ns: int) -> StepResult | Unfinished[StepResult]:
        """Executes the next step, or launches it.

        Raises RpcError, having changed nothing, if the step is not allowed.
        """
        if self._launches:
            self._pipeline.make_way(step)  # a failure there revokes the lease
        if not self._is_open:
            raise Aborted(f"the lease of epoch {self.epoch:#x} has ended")
        if step.step_id != self._num_executed + 1:  # the step before it was refused
            raise FailedPrecondition(
                f"step {step.step_id} sent, step {self._num_executed + 1} expected"
            )
        wait_ns = time.monotonic_ns() - arrived_ns
        if not step.traceparent:
            return self._execute(step, None, wait_ns=wait_ns)
        span = StepSpan(step, self._capacity)
        with span.current():
            return self._execute(step, span, wait_ns=wait_ns)

    def _execute(
        self, step: Step, span: StepSpan | None, *, wait_ns: int
    ) -> StepResult | Unfinished[StepResult]:
        handlers = self._handlers if step.has_sections else ()
        for handler in handlers:
            handler.check(step)
        batch = self.table.apply(step)
        self._num_executed = step.step_id
        try:
            swap_ns = 0
            for handler in handlers:
                swap_ns += handler.apply(step)
            finish_result = partial(
                self._finish_result, span=span, wait_ns=wait_ns, swap_ns=swap_ns
            )
            return self._compute(batch, finish_result, on_error=partial(self._fail_later, span))
        except Exception as error:
            raise self._fail(error) from error

    def _compute(
        self, batch: Batch, finish_result: FinishResult, on_error: OnError
    ) -> StepResult | Unfinished[StepResult]:
        """Computes an applied step; raises if more than the step's sequences are harmed."""
        if not len(batch.token_ids):
            samples = BatchOutput(token_ids=np.empty(0, dtype=np.int32))
        elif self._launches and (launched := self._launch(batch, finish_result, on_error)):
            return launched
        else:
            samples = execute_batch(self._runner, batch, self._limit)
        result = self.table.append_tokens(samples)
        if self.table.settlement is not None:
            began_ns = time.perf_counter_ns()
            self._runner.settle(self.table.settlement)
            samples.forward_ns += time.perf_counter_ns() - began_ns
        return finish_result(result, samples)

    def _launch(
        self, batch: Batch, finish_result: FinishResult, on_error: OnError
    ) -> StepInFlight | None:
        """Returns None where the batch must be computed at once; its tokens are known then."""
        try:
            if self._limit.allows(batch):
                launched = self._pipeline.launch(batch, finish_result, on_error)
                if self._limit.lowered is not None:
                    self._limit.count_step()
                return launched
        except Exception as error:  # isolation will say what it is
            if is_device_lost(error):
                raise
            logger.warning("a step cannot be launched: %s", str(error).partition("\n")[0])
        self._pipeline.know(batch)
        return None

    def _finish_result(
        self,
        result: StepResult,
        samples: BatchOutput,
        *,
        span: StepSpan | None,
        wait_ns: int,
        swap_ns: int,
    ) -> StepResult:
        result.timings = StepTimings(
            wait_ns, swap_ns, samples.forward_ns, samples.sample_ns, samples.stages
        )
        result.max_num_batched_tokens = self._limit.lowered
        result.moves = self._transfers.pop_ended()
        if span is not None:
            span.end(result, stages_ns=samples.stages_ns)
        return result

    def _fail_later(self, span: StepSpan | None, error: Exception) -> Exception:
        """Ends the span of a launched step by an error, and returns the error of the lease."""
        if span is not None:
            span.fail(error)
        return self._fail(error)

    def _fail(self, error: Exception) -> Exception:
        """Ends the lease after an error that harms more than some sequences."""
        logger.error("step %d failed; its lease ends", self._num_executed, exc_info=error)
        self.revoke()
        failure = Internal("a step failed half-way; the cache is lost")
        failure.__cause__ = error
        return failure


def execute_batch(runner: Runner, batch: Batch, limit: TokenLimit) -> BatchOutput:
    """Computes a batch, in parts if it is beyond the limit or fails as a whole.

    Sequences that fail, alone or because their states may have changed, are in `failed_seqs`.
    """
    fault: Fault | None = None
    if limit.allows(batch):
        try:
            samples = runner.execute(batch)
        except Exception as error:  # a kernel may raise anything; the service goes on
            fault = fault_of(error, batch)
        else:
            if limit.lowered is not None:
                limit.count_step()
            return samples
    return execute_parts(runner, batch, limit, fault)

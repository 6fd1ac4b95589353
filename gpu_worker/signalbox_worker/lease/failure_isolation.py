"""Finds the sequence that a step fails for, so that it fails alone: the batch is run in halves.

A forward pass writes the K and V of its own tokens alone, draws depend on nothing but the sequence,
and no sequence of a batch reads what another one computes in it. So any part may be run again, and
says what it would have said in the whole. A batch that memory does not suffice for is cut between
tokens instead, within a sequence too: its later tokens read what its earlier ones have written. A
sequence whose attention sees both ways is never cut. States of recurrent layers change in place, so
a batch with them is run again only if the runner had no memory to begin it, which MemoryError says.
After any other error all of its sequences fail with `STATE_LOST`: the scheduler computes them again
from their last snapshots, which no step changes.
Bisection is group testing (Dorfman, 1943): one culprit of B costs about two more steps' work.
"""

import logging
from enum import Enum

import numpy as np

from signalbox_contract.step_result import sum_stages
from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.pooling_rows import PoolingRows
from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.batch.sequence_failures import STATE_LOST
from signalbox_worker.batch.state_runs import state_part
from signalbox_worker.device.device_errors import DeviceLost, device_loss
from signalbox_worker.lease.token_limit import TokenLimit
from signalbox_worker.runner.runner import Runner

logger = logging.getLogger(__name__)

KERNEL_RAISED = "the worker failed to compute this sequence; its log says why"
NO_MEMORY = "the worker has no memory to compute this sequence; lower max_num_batched_tokens"


class Fault(Enum):
    """Reasons why a batch could not be computed, with the message for its sequences."""

    RAISED = KERNEL_RAISED
    NO_MEMORY = NO_MEMORY


def fault_of(error: Exception, batch: Batch) -> Fault:
    """Logs an error of a runner, and returns what it means. Raises DeviceLost.

    The fault does not hold on to the error, whose frames may hold much memory.
    """
    if isinstance(error, MemoryError):
        logger.warning("no memory for %d tokens: %s", len(batch.token_ids), error)
        return Fault.NO_MEMORY
    if (loss := device_loss(error)) is not None:
        raise DeviceLost(str(loss).partition("\n")[0]) from None
    logger.error("%d sequences failed together", _num_seqs(batch), exc_info=error)
    return Fault.RAISED


def execute_parts(
    runner: Runner, batch: Batch, limit: TokenLimit, fault: Fault | None
) -> BatchOutput:
    """Computes a batch in parts; sequences that fail alone are in `failed_seqs`.

    Where memory suffices for parts alone, the limit becomes the largest of them.

    Args:
        fault: why the whole batch failed; None if it is beyond the limit, and was not tried.
    """
    parts = _Parts(runner, batch, limit)
    parts.is_short_of_memory = fault is Fault.NO_MEMORY
    parts.split(0, len(batch.token_ids), fault or Fault.NO_MEMORY)
    if failed := parts.samples.failed_seqs:
        logger.warning("%d of %d sequences failed", len(failed), _num_seqs(batch))
    elif parts.is_short_of_memory:  # a sequence that fails alone may be the cause
        limit.lower(parts.largest)
    elif limit.lowered is not None:
        limit.count_step()
    return parts.samples


class _Parts:
    """Collects the samples of a batch from those of its parts."""

    def __init__(self, runner: Runner, batch: Batch, limit: TokenLimit) -> None:
        self._runner = runner
        self._batch = batch
        self._limit = limit
        self.is_short_of_memory = False
        self.largest = 0
        """Tokens of the largest part that was computed."""
        token_ids = np.zeros(len(batch.rows), dtype=np.int32)
        self.samples = BatchOutput(token_ids=token_ids, can_settle=batch.states is None)
        if batch.rows.returns_logits is not None:
            self.samples.logits = np.full(len(batch.rows), np.nan, dtype=np.float32)
        if batch.prompt_rows is not None:
            num_rows = len(batch.prompt_rows.targets)
            self.samples.prompt_logprobs = [Logprobs.unknown(i) for i in range(num_rows)]

    def split(self, start: int, stop: int, fault: Fault) -> None:
        """Computes tokens [start, stop) in two halves; fails their sequences if there are none."""
        if fault is Fault.RAISED and self._batch.states is not None:
            seqs = range(self._owner(start), self._owner(stop - 1) + 1)
            self.samples.failed_seqs |= dict.fromkeys(seqs, STATE_LOST)
            return
        middle = self._middle(start, stop, fault)
        if middle is None:
            self.samples.failed_seqs[self._owner(start)] = fault.value
            return
        self._compute(start, middle)
        self._compute(middle, stop)

    def _compute(self, start: int, stop: int) -> None:
        batch = part(self._batch, start, stop)
        if not self._limit.allows(batch):
            self.split(start, stop, Fault.NO_MEMORY)
            return
        try:
            samples = self._runner.execute(batch)
        except Exception as error:
            fault = fault_of(error, batch)
        else:
            self.largest = max(self.largest, stop - start)
            self._add(samples, start)
            return
        self.is_short_of_memory |= fault is Fault.NO_MEMORY
        self.split(start, stop, fault)

    def _middle(self, start: int, stop: int, fault: Fault) -> int | None:
        if fault is Fault.NO_MEMORY and self._limit.cuts_sequences:
            return None if stop - start < 2 else (start + stop) // 2
        first, last = self._owner(start), self._owner(stop - 1)
        return None if first == last else int(self._batch.query_start[(first + last + 1) // 2])

    def _owner(self, token: int) -> int:
        return int(np.searchsorted(self._batch.query_start, token, side="right")) - 1

    def _add(self, found: BatchOutput, start: int) -> None:
        """Puts the samples of the part that begins at token `start` into their places."""
        samples = self.samples
        first = int(np.searchsorted(self._batch.rows.token_index, start))
        samples.token_ids[first : first + len(found.token_ids)] = found.token_ids
        if samples.logits is not None and found.logits is not None:
            samples.logits[first : first + len(found.logits)] = found.logits
        samples.logprobs += [one._replace(row=first + one.row) for one in found.logprobs]
        samples.failed |= {first + row: reason for row, reason in found.failed.items()}
        if self._batch.prompt_rows is not None:
            first = int(np.searchsorted(self._batch.prompt_rows.token_index, start))
            for one in found.prompt_logprobs:
                samples.prompt_logprobs[first + one.row] = one._replace(row=first + one.row)
        first = self._owner(start)
        samples.failed_seqs |= {first + i: reason for i, reason in found.failed_seqs.items()}
        samples.pooled |= {first + i: vector for i, vector in found.pooled.items()}
        samples.forward_ns += found.forward_ns
        samples.sample_ns += found.sample_ns
        samples.stages = sum_stages(samples.stages, found.stages)
        samples.stages_ns += found.stages_ns


def part(batch: Batch, start: int, stop: int) -> Batch:
    """Returns the batch of tokens [start, stop) alone, of which there is at least one."""
    bounds = batch.query_start
    first = int(np.searchsorted(bounds, start, side="right")) - 1
    last = int(np.searchsorted(bounds, stop, side="left"))
    query_start = np.clip(bounds[first : last + 1], start, stop) - start
    rows = batch.rows.take(_between(batch.rows.token_index, start, stop))
    rows.token_index = rows.token_index - start
    positions = batch.positions[start:stop]
    return Batch(
        token_ids=batch.token_ids[start:stop],
        positions=positions,
        slot_mapping=batch.slot_mapping[start:stop],
        query_start=query_start,
        context_lens=positions[query_start[1:] - 1] + 1,
        block_tables=batch.block_tables[first:last],
        rows=rows,
        seq_ids=None if batch.seq_ids is None else batch.seq_ids[first:last],
        prompt_rows=_prompt_part(batch, start, stop, first_seq=first),
        adapters=None if batch.adapters is None else batch.adapters[start:stop],
        token_types=None if batch.token_types is None else batch.token_types[start:stop],
        pooling=_pooling_part(batch, first, last, stop=stop),
        states=None
        if batch.states is None
        else state_part(batch.states, bounds, start, stop, slice(first, last)),
    )


def _pooling_part(batch: Batch, first: int, last: int, *, stop: int) -> PoolingRows | None:
    """The rows of sequences [first, last); the part has no vector of one that is cut at `stop`."""
    rows = batch.pooling
    if rows is None:
        return None
    return PoolingRows(
        slots=rows.slots[first:last],
        is_last=rows.is_last[first:last] & (batch.query_start[first + 1 : last + 1] <= stop),
        num_skipped=rows.num_skipped[first:last],
        is_per_token=rows.is_per_token[first:last],
    )


def _prompt_part(batch: Batch, start: int, stop: int, *, first_seq: int) -> PromptRows | None:
    """The prompt rows of tokens [start, stop); a run that is cut begins later, or ends earlier."""
    rows = batch.prompt_rows
    if rows is None:
        return None
    run_ends = np.cumsum(rows.lengths)
    picked = _between(rows.token_index, start, stop)
    if not len(picked):
        return None
    ends = np.clip(run_ends, picked[0], picked[-1] + 1)
    lengths = ends - np.append(picked[:1], ends[:-1])
    runs = np.flatnonzero(lengths)
    cut = np.maximum(picked[0] - (run_ends - rows.lengths), 0)
    return PromptRows(
        seq_index=rows.seq_index[runs] - first_seq,
        first_position=(rows.first_position + cut)[runs],
        lengths=lengths[runs],
        token_index=rows.token_index[picked] - start,
        targets=rows.targets[picked],
        num_logprobs=rows.num_logprobs[picked],
    )


def _between(token_index: Int64Array, start: int, stop: int) -> Int64Array:
    """Returns the rows whose token is one of [start, stop); they ascend."""
    first, last = np.searchsorted(token_index, [start, stop])
    return np.arange(first, last)


def _num_seqs(batch: Batch) -> int:
    return len(batch.query_start) - 1

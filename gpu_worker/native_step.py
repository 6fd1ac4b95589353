"""Runs a step through a native program: one call computes the batch and draws the greedy rows.

Rows that sample, or that report logprobs, get their logits from the call and go on to the sampler.
"""

import logging
import time
from dataclasses import fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.config import DeviceConfig
from gpu_worker.layers import ParallelGroup, Placement
from gpu_worker.models.native_program import compile_decoder, why_not_native
from gpu_worker.models.registry import Model
from gpu_worker.sampler import GREEDY_BELOW, Sampler
from gpu_worker.step import Batch, Int64Array, Logprobs, SampleRows, Samples
from signalbox_kernels.native import NativeUnavailable, library
from signalbox_kernels.program import Program, StepArrays

logger = logging.getLogger(__name__)


def make_program(
    model: Model,
    device_config: DeviceConfig,
    *,
    placement: Placement,
    group: ParallelGroup,
    block_size: int,
    max_model_len: int,
) -> Program | None:
    """Compiles a loaded model if it can be, and is to be; the model is empty afterwards."""
    wanted = device_config.cpu_backend
    if wanted == "torch" or (wanted == "auto" and placement.device.type != "cpu"):
        return None
    reason = why_not_native(model, placement=placement, group=group, block_size=block_size)
    reason = reason or _why_no_library(warn=wanted == "auto")
    if reason is None:
        program = compile_decoder(
            model,  # type: ignore[arg-type]  # what why_not_native has checked
            dtype=placement.dtype,
            block_size=block_size,
            max_model_len=max_model_len,
            num_threads=device_config.num_threads or torch.get_num_threads(),
        )
        logger.info("steps run natively on %s", program.isa.name)
        return program
    if wanted == "native":
        raise ValueError(f"cpu_backend is 'native', but {reason}; use 'auto' or 'torch'")
    logger.info("steps run through PyTorch; the native path: %s", reason)
    return None


def _why_no_library(*, warn: bool) -> str | None:
    try:
        library()
    except NativeUnavailable as error:
        if warn:
            logger.warning("no native CPU kernels: %s; PyTorch computes, more slowly", error)
        return str(error)
    return None


class NativeStep:
    """A program bound to a pool, with the sampler for what it does not draw itself."""

    def __init__(self, program: Program, sampler: Sampler) -> None:
        self._program = program
        self._sampler = sampler
        self._vocab_size = program.shape.vocab_size
        self._logits = np.empty((0, self._vocab_size), dtype=np.float32)

    @property
    def block_bytes(self) -> int:
        return self._program.shape.block_bytes

    def bind(self, pool: Tensor) -> None:
        self._program.bind(pool)

    def execute(self, batch: Batch) -> Samples:
        start = time.perf_counter_ns()
        tokens, row_of = np.unique(batch.rows.token_index, return_inverse=True)
        drawn = _rows_to_draw(batch.rows)
        arrays = self._arrays(batch, tokens, row_of, drawn)
        self._program.run(arrays)
        forwarded = time.perf_counter_ns()
        samples = _greedy(arrays, row_of)
        if len(drawn):
            logits = torch.from_numpy(self._logits)[arrays.logits_of_row[row_of[drawn]]]
            _merge(samples, self._sampler(logits, take_rows(batch.rows, drawn)), drawn)
        samples.forward_ns = forwarded - start
        samples.sample_ns = time.perf_counter_ns() - forwarded
        return samples

    def _arrays(
        self, batch: Batch, tokens: Int64Array, row_of: Int64Array, drawn: Int64Array
    ) -> StepArrays:
        """Args: tokens: [num_rows] that need the head; row_of: [draws] row of each draw."""
        wanted = np.unique(row_of[drawn])
        if len(wanted) > len(self._logits):
            self._logits = np.empty((len(wanted), self._vocab_size), dtype=np.float32)
        logits_of_row = np.full(len(tokens), -1, dtype=np.int32)
        logits_of_row[wanted] = np.arange(len(wanted))
        ends, suppressed = _suppressed(batch.rows, row_of, len(tokens))
        return StepArrays(
            token_ids=batch.token_ids,
            positions=batch.positions,
            slots=batch.slot_mapping,
            query_start=batch.query_start,
            context_lens=batch.context_lens,
            block_tables=np.ascontiguousarray(batch.block_tables),
            row_tokens=tokens,
            logits_of_row=logits_of_row,
            suppressed_end=ends,
            suppressed=suppressed,
            argmax=np.empty(len(tokens), dtype=np.int32),
            is_finite=np.empty(len(tokens), dtype=np.uint8),
            logits=self._logits,
        )


def _rows_to_draw(rows: SampleRows) -> Int64Array:
    """Which rows need more than the likeliest token."""
    needs_logits = rows.temperature >= GREEDY_BELOW
    needs_logits[list(rows.num_logprobs)] = True
    return np.flatnonzero(needs_logits)


def _suppressed(
    rows: SampleRows, row_of: Int64Array, num_rows: int
) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """The runs of suppressed tokens: where each row's ends, and all of them."""
    of_row = {int(row_of[draw]): tokens for draw, tokens in rows.suppressed.items()}
    lengths = np.zeros(num_rows, dtype=np.int32)
    lengths[list(of_row)] = [len(tokens) for tokens in of_row.values()]
    tokens = [token for row in sorted(of_row) for token in of_row[row]]
    return lengths.cumsum(dtype=np.int32), np.array(tokens, dtype=np.int32)


def _greedy(arrays: StepArrays, row_of: Int64Array) -> Samples:
    tokens = arrays.argmax[row_of]
    failed = dict.fromkeys(np.flatnonzero(tokens < 0).tolist(), "every token is suppressed")
    bad = np.flatnonzero(arrays.is_finite[row_of] == 0).tolist()
    return Samples(token_ids=tokens, failed=failed | dict.fromkeys(bad, "logits are not finite"))


def take_rows(rows: SampleRows, picked: Int64Array) -> SampleRows:
    """Returns some of the rows, renumbered."""
    new_of = {row: new for new, row in enumerate(picked.tolist())}
    columns: dict[str, Any] = {}
    for column in fields(rows):
        value = getattr(rows, column.name)
        if isinstance(value, dict):
            columns[column.name] = {new_of[r]: v for r, v in value.items() if r in new_of}
        else:
            columns[column.name] = value[picked]
    return SampleRows(**columns)


def _merge(samples: Samples, drawn: Samples, rows: Int64Array) -> None:
    """Puts what the sampler drew for `rows` into its places."""
    samples.token_ids[rows] = drawn.token_ids
    for row in rows.tolist():
        samples.failed.pop(row, None)
    samples.failed |= {int(rows[row]): reason for row, reason in drawn.failed.items()}
    samples.logprobs = [Logprobs(int(rows[entry.row]), *entry[1:]) for entry in drawn.logprobs]

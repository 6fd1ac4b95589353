"""Draws natively on the CPU: packs the rows' columns for `signalbox_kernels.sampling`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.program import Program
from signalbox_kernels.random import race_keys
from signalbox_kernels.sampling import MAX_LOGPROBS, Drawn, Draws, NativeSampler
from signalbox_worker.batch.arrays import FloatArray, Int32Array, Int64Array
from signalbox_worker.batch.batch import BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import SampleRows, TokenRuns
from signalbox_worker.sampling.sampler import failures


class CpuSampler:
    """A `Sampler` of arrays; gives the tokens that `TorchSampler` gives."""

    def __init__(self, *, program: Program | None, num_threads: int) -> None:
        """Raises NativeUnavailable."""
        self._native = NativeSampler(program=program, num_threads=num_threads)

    def __call__(
        self, logits: FloatArray, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        logits_row = np.arange(len(rows)) if logits_row is None else logits_row
        drawn = self._native.run(
            Draws(
                logits=logits,
                logits_row=logits_row,
                num_logprobs=np.minimum(rows.num_logprobs, MAX_LOGPROBS),
                keys=race_keys(rows.seed, rows.branch, rows.position),
                temperature=rows.temperature,
                filters=rows.filters,
                **_edits(rows),
            )
        )
        reported = np.flatnonzero((rows.num_logprobs >= 0) & (drawn.status == 0))
        found = _logprobs(drawn, reported, rows.num_logprobs, logits, logits_row)
        return BatchOutput(
            token_ids=drawn.drawn,
            logprobs=_with_tokens(found, rows.logprob_tokens, logits, logits_row, drawn.drawn),
            failed=failures(drawn.status),
        )

    def logprobs(
        self, logits: FloatArray, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        index = np.arange(len(targets))
        drawn = self._native.run(
            Draws(
                logits=logits,
                logits_row=index,
                num_logprobs=np.minimum(num_logprobs, MAX_LOGPROBS),
                targets=np.ascontiguousarray(targets),
            )
        )
        return _logprobs(drawn, index, num_logprobs, logits, index)


def _edits(rows: SampleRows) -> dict[str, Any]:
    """Returns the arrays of the parts that at least one row uses."""
    arrays: dict[str, Any] = {}
    if rows.suppressed is not None:
        arrays["suppressed_end"], arrays["suppressed"] = rows.suppressed
    if rows.biases is not None:
        arrays["bias_end"], arrays["bias_tokens"] = rows.biases.runs
        arrays["biases"] = rows.biases.values
    if rows.allowed is not None:
        arrays["mask_of_row"], arrays["masks"] = rows.allowed
    if rows.penalties is not None:
        arrays |= rows.penalties._asdict() | {"num_tokens": rows.position}
    return arrays


def _logprobs(
    drawn: Drawn,
    rows: Int64Array,
    num_logprobs: Int64Array,
    logits: NDArray[np.float32],
    logits_row: Int64Array,
) -> list[Logprobs]:
    if not len(rows):
        return []
    columns = (
        rows.tolist(),
        num_logprobs[rows].tolist(),
        drawn.logprob[rows].tolist(),
        drawn.rank[rows].tolist(),
        drawn.top_tokens[rows].tolist(),
        drawn.top_logprobs[rows].tolist(),
    )
    reported = [
        Logprobs(row, logprob, rank, ids[:count], values[:count])
        for row, count, logprob, rank, ids, values in zip(*columns, strict=True)
    ]
    for one, count in zip(reported, num_logprobs[rows].tolist(), strict=True):
        if count > MAX_LOGPROBS:
            _report_more(one, logits[logits_row[one.row]], count)
    return reported


def _with_tokens(
    found: list[Logprobs],
    logprob_tokens: TokenRuns | None,
    logits: FloatArray,
    logits_row: Int64Array,
    drawn: Int32Array,
) -> list[Logprobs]:
    """Returns `found`, with a row's run of tokens, if it has one, as its alternatives."""
    if logprob_tokens is None:
        return found
    last = logprob_tokens.ends
    named = []
    for one in found:
        first = last[one.row - 1] if one.row else 0
        ids = logprob_tokens.token_ids[first : last[one.row]]
        if len(ids):
            row = logits[logits_row[one.row]]
            log_sum = row[drawn[one.row]] - np.float32(one.logprob)
            one = one._replace(
                top_token_ids=ids.tolist(), top_logprobs=(row[ids] - log_sum).tolist()
            )
        named.append(one)
    return named


def _report_more(found: Logprobs, logits: NDArray[np.float32], count: int) -> None:
    """Appends the tokens beyond those that the native code keeps in order as it goes."""
    order = np.argsort(-logits, kind="stable")[:count]  # of equals the lowest id is first
    log_sum = logits[order[0]] - np.float32(found.top_logprobs[0])
    found.top_token_ids.extend(order[MAX_LOGPROBS:].tolist())
    found.top_logprobs.extend((logits[order[MAX_LOGPROBS:]] - log_sum).tolist())

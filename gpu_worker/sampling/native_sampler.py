"""Draws natively on the CPU: packs the rows' columns for `signalbox_kernels.sampling`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gpu_worker.sampling.sample_rows import Int32Array, Int64Array, SampleRows
from gpu_worker.sampling.sampler import failures
from gpu_worker.step import Logprobs, Samples
from signalbox_kernels.program import Program
from signalbox_kernels.random import race_keys
from signalbox_kernels.sampling import Drawn, Draws, NativeSampler


class CpuSampler:
    """A `Sampler`; gives the tokens that `TorchSampler` gives."""

    def __init__(self, *, program: Program | None, num_threads: int) -> None:
        """Raises NativeUnavailable."""
        self._native = NativeSampler(program=program, num_threads=num_threads)

    def __call__(
        self, logits: Tensor, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> Samples:
        drawn = self._native.run(
            Draws(
                logits=_floats(logits),
                logits_row=np.arange(len(rows)) if logits_row is None else logits_row,
                num_logprobs=rows.num_logprobs,
                keys=race_keys(rows.seed, rows.branch, rows.position),
                temperature=rows.temperature,
                top_p=rows.top_p,
                min_p=rows.min_p,
                typical_p=rows.typical_p,
                top_k=rows.top_k,
                **_edits(rows),
            )
        )
        reported = np.flatnonzero((rows.num_logprobs >= 0) & (drawn.status == 0))
        return Samples(
            token_ids=drawn.drawn,
            logprobs=_logprobs(drawn, reported, rows.num_logprobs),
            failed=failures(drawn.status),
        )

    def logprobs(
        self, logits: Tensor, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        index = np.arange(len(targets))
        drawn = self._native.run(
            Draws(
                logits=_floats(logits),
                logits_row=index,
                num_logprobs=num_logprobs,
                targets=np.ascontiguousarray(targets),
            )
        )
        return _logprobs(drawn, index, num_logprobs)


def _floats(logits: Tensor) -> NDArray[np.float32]:
    array: NDArray[np.float32] = logits.float().contiguous().numpy()
    return array


def _edits(rows: SampleRows) -> dict[str, Any]:
    """The arrays of the parts that some row uses."""
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


def _logprobs(drawn: Drawn, rows: Int64Array, num_logprobs: Int64Array) -> list[Logprobs]:
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
    return [
        Logprobs(row, logprob, rank, ids[:count], values[:count])
        for row, count, logprob, rank, ids, values in zip(*columns, strict=True)
    ]

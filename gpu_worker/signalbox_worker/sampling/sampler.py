"""The interface of samplers, of arrays or of tensors; all of them sample the same tokens."""

from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.sampling import DrawStatus
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.batch import BatchOutput, Logprobs
from signalbox_worker.batch.sampling_rows import SampleRows
from signalbox_worker.batch.sequence_failures import NONE_LEFT

LogitsT = TypeVar("LogitsT", contravariant=True)

NOT_FINITE = "logits are not finite"
_REASONS = {DrawStatus.NOT_FINITE: NOT_FINITE, DrawStatus.NONE_LEFT: NONE_LEFT}


def failures(status: NDArray[np.integer]) -> dict[int, str]:
    """Returns why each row failed that did, by the `DrawStatus` that a kernel gave it."""
    return {row: _REASONS[DrawStatus(int(status[row]))] for row in status.nonzero()[0].tolist()}


class Sampler(Protocol[LogitsT]):
    """Draws from logits of one vocabulary."""

    def __call__(
        self, logits: LogitsT, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        """Draws one token a row.

        Args:
            logits: [*, vocab_size].
            logits_row: [num_rows], each row's index into `logits`; None: they are the rows.
        """
        ...

    def logprobs(
        self, logits: LogitsT, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        """Returns the log probability of a given token for each row of logits; NaN may come out."""
        ...


class NoSampler:
    """Sampler of a shard that only helps to compute logits; the first shard samples."""

    def __call__(
        self, logits: object, rows: SampleRows, logits_row: Int64Array | None = None
    ) -> BatchOutput:
        return BatchOutput(token_ids=np.zeros(len(rows), dtype=np.int32))

    def logprobs(
        self, logits: object, targets: Int32Array, num_logprobs: Int64Array
    ) -> list[Logprobs]:
        return []

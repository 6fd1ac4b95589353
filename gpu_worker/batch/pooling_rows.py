"""Sequences of a batch whose outcome is a vector of their hidden states, in place of tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpu_worker.batch.arrays import Int32Array, Int64Array


@dataclass(slots=True, kw_only=True)
class PoolingRows:
    """All B sequences of a batch; a pooling worker draws no tokens.

    A sequence whose tokens begin at position 0 begins anew: nothing of it is kept before that.
    """

    seq_ids: Int64Array
    """[B]."""
    is_last: NDArray[np.bool_]
    """[B]; True if the batch has the prompt's last token, so that the vector is due."""
    num_skipped: Int32Array
    """[B], leading tokens of the prompt that a mean or a maximum leaves out."""

    def __len__(self) -> int:
        return len(self.seq_ids)

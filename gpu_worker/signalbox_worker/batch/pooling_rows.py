"""Sequences of a batch whose outcome is vectors of their hidden states, in place of tokens."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.batch.arrays import Int32Array, Int64Array


@dataclass(slots=True, kw_only=True)
class PoolingRows:
    """All B sequences of a batch; a pooling worker draws no tokens.

    A sequence whose tokens begin at position 0 begins anew: what is kept in its slot is of another
    one, which has ended. Otherwise they begin where the last batch of the slot has ended, or where
    it began: a batch that fails is computed again, in parts.
    """

    slots: Int64Array
    """[B], place of each sequence among those that the worker knows; no two have one at a time."""
    is_last: NDArray[np.bool_]
    """[B]; True if the batch has the prompt's last token, so that the vector is due."""
    num_skipped: Int32Array
    """[B], leading tokens of the prompt that a mean or a maximum leaves out."""
    is_per_token: NDArray[np.bool_]
    """[B]; True if the outcome is a vector of each token; the batch has the whole prompt."""

    def __len__(self) -> int:
        return len(self.slots)

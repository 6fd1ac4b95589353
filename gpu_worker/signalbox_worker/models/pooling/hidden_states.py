"""The normed hidden states of a batch's tokens, as a pooler reads them."""

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.batch.arrays import FloatArray, Int64Array

Sums = NDArray[np.float64]
Norm = Callable[[FloatArray], FloatArray]


class TokenStates(Protocol):
    """Rows of [num_tokens, hidden_size]; runs are slices of tokens, none of which is empty."""

    def rows(self, tokens: Int64Array) -> FloatArray:
        """Returns [len(tokens), hidden_size]."""
        ...

    def sums(self, runs: Sequence[slice]) -> Sums:
        """Returns the sum over each run, [len(runs), hidden_size]."""
        ...

    def weighted_sums(self, runs: Sequence[slice], first: Sequence[int]) -> Sums:
        """Returns the sum over each run with the weights first, first + 1 and so on."""
        ...

    def maxima(self, runs: Sequence[slice]) -> FloatArray:
        """Returns the largest elements of each run, [len(runs), hidden_size]."""
        ...


class HostStates:
    """Hidden states in the host's memory. Satisfies `TokenStates`."""

    def __init__(self, states: FloatArray, norm: Norm | None = None) -> None:
        """Args: norm: of the states that are read, if they are not normed yet."""
        self._states, self._norm = states, norm

    def rows(self, tokens: Int64Array) -> FloatArray:
        rows = self._states[tokens]
        return rows if self._norm is None else self._norm(rows)

    def sums(self, runs: Sequence[slice]) -> Sums:
        return np.stack([self._normed[run].sum(axis=0, dtype=np.float64) for run in runs])

    def weighted_sums(self, runs: Sequence[slice], first: Sequence[int]) -> Sums:
        return np.stack(
            [
                np.arange(start, start + run.stop - run.start)
                @ self._normed[run].astype(np.float64)
                for run, start in zip(runs, first, strict=True)
            ]
        )

    def maxima(self, runs: Sequence[slice]) -> FloatArray:
        return np.stack([self._normed[run].max(axis=0) for run in runs])

    @cached_property
    def _normed(self) -> FloatArray:
        return self._states if self._norm is None else self._norm(self._states)

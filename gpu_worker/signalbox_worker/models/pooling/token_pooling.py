"""Pools the tokens of a sequence, whose chunks may come in several batches.

The modes are those of sentence-transformers. Each reads the tokens past the skipped ones, once:
what a sequence's tokens gave so far is kept between its chunks, and is replaced only when a whole
batch is pooled, so that a batch that fails counts nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, get_args

import numpy as np

from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.models.pooling.hidden_states import Sums, TokenStates

PoolingMode = Literal["cls", "lasttoken", "max", "mean", "mean_sqrt_len_tokens", "weightedmean"]
POOLING_MODES: tuple[PoolingMode, ...] = get_args(PoolingMode)
_SUMMED = ("mean", "mean_sqrt_len_tokens")


class Run(NamedTuple):
    """The tokens that a sequence has in a batch."""

    tokens: slice
    """Indices in the batch."""
    position: int
    """Position of the first of these tokens in the sequence."""
    num_skipped: int
    """Leading tokens of the sequence that are not pooled."""

    @property
    def pooled(self) -> slice:
        """The tokens past the skipped ones; may be empty."""
        start: int = self.tokens.start + max(0, self.num_skipped - self.position)
        return slice(min(start, self.tokens.stop), self.tokens.stop)

    @property
    def end(self) -> int:
        """Position behind its last token."""
        return self.position + _length(self.tokens)


@dataclass(slots=True, kw_only=True)
class PartialPool:
    """Pooled values of a sequence's tokens so far, [hidden_size] each; None before the first."""

    num_tokens: int = 0
    """Tokens of the sequence so far, skipped ones included."""
    num_pooled: int = 0
    weight: float = 0.0
    """Sum of the weights in `weighted`."""
    first: FloatArray | None = None
    last: FloatArray | None = None
    total: Sums | None = None
    weighted: Sums | None = None
    largest: FloatArray | None = None

    def vector(self, mode: PoolingMode) -> FloatArray:
        """Returns what a mode makes of all tokens; zeros or NaN if all are skipped."""
        match mode:
            case "cls":
                return _known(self.first)
            case "lasttoken":
                return _known(self.last)
            case "max":
                return _known(self.largest, default=self.last)
            case "weightedmean":
                return _divided(self.weighted, self.weight, like=self.last)
            case "mean":
                return _divided(self.total, self.num_pooled, like=self.last)
            case "mean_sqrt_len_tokens":
                return _divided(self.total, self.num_pooled**0.5, like=self.last)


def _known(vector: FloatArray | None, default: FloatArray | None = None) -> FloatArray:
    if vector is not None:
        return vector
    assert default is not None, "a sequence has a token"
    return np.full_like(default, np.nan)


def _divided(total: Sums | None, divisor: float, *, like: FloatArray | None) -> FloatArray:
    if total is None:
        assert like is not None, "a sequence has a token"
        return np.zeros_like(like)
    return (total / divisor).astype(np.float32)


def add_runs(
    partials: Sequence[PartialPool],
    runs: Sequence[Run],
    states: TokenStates,
    modes: frozenset[PoolingMode],
) -> list[PartialPool]:
    """Returns the partial pools with the tokens of a batch added; leaves the given ones as they
    are."""
    added = [
        PartialPool(
            num_tokens=run.end,
            num_pooled=one.num_pooled + _length(run.pooled),
            weight=one.weight,
            first=one.first,
            total=one.total,
            weighted=one.weighted,
            largest=one.largest,
        )
        for one, run in zip(partials, runs, strict=True)
    ]
    _set_ends(added, runs, states, wants_first="cls" in modes)
    some = [i for i, run in enumerate(runs) if _length(run.pooled)]
    if some:
        _add_pooled([added[i] for i in some], [runs[i] for i in some], states, modes)
    return added


def _set_ends(
    pools: Sequence[PartialPool], runs: Sequence[Run], states: TokenStates, *, wants_first: bool
) -> None:
    lasts = states.rows(np.array([run.tokens.stop - 1 for run in runs]))
    for pool, last in zip(pools, lasts, strict=True):
        pool.last = last
    if not wants_first:
        return
    # The first token that is not skipped; the first of all until it comes.
    starts = np.array([min(run.pooled.start, run.tokens.stop - 1) for run in runs])
    begins = np.array([run.tokens.start for run in runs])
    for pool, run, row, begin in zip(
        pools, runs, states.rows(starts), states.rows(begins), strict=True
    ):
        is_pooled_now = run.position <= run.num_skipped < run.end
        if is_pooled_now:
            pool.first = row
        elif not run.position:
            pool.first = begin


def _add_pooled(
    pools: Sequence[PartialPool],
    runs: Sequence[Run],
    states: TokenStates,
    modes: frozenset[PoolingMode],
) -> None:
    pooled = [run.pooled for run in runs]
    if not modes.isdisjoint(_SUMMED):
        for pool, total in zip(pools, states.sums(pooled), strict=True):
            pool.total = total if pool.total is None else pool.total + total
    if "weightedmean" in modes:
        first = [run.end - _length(run.pooled) + 1 for run in runs]
        sums = states.weighted_sums(pooled, first)
        for pool, run, start, total in zip(pools, runs, first, sums, strict=True):
            pool.weighted = total if pool.weighted is None else pool.weighted + total
            pool.weight += (start + run.end) * _length(run.pooled) / 2
    if "max" in modes:
        for pool, largest in zip(pools, states.maxima(pooled), strict=True):
            known = pool.largest
            pool.largest = largest if known is None else np.maximum(known, largest)


def _length(run: slice) -> int:
    return int(run.stop - run.start)


def concatenated(pools: Sequence[PartialPool], modes: Sequence[PoolingMode]) -> FloatArray:
    """Returns the vectors of sequences that have ended, [num_seqs, num_modes * hidden_size].

    Args:
        modes: in the order of their vectors.
    """
    return np.stack([np.concatenate([pool.vector(mode) for mode in modes]) for pool in pools])

"""Attention of encoders: every token of a sequence sees those before and behind it.

A batch has all tokens of its sequences, so their queries, keys and values are attended where they
are: nothing is written to the pool of blocks, and a block is a byte. Sequences of like lengths are
padded to the longest of them and attend in one call of PyTorch's; in layers with a window, a long
one attends part by part, each with the keys around it. Runs on any device.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.models.attention.backend import AttentionShape

_PART = 256
"""Least queries of a part of a long sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Queries that attend to keys in one call: a slice each, or [num_seqs, length] of indices."""

    queries: slice | Tensor
    keys: slice | Tensor
    mask: Tensor | None
    """[num_seqs, 1, num_queries or 1, num_keys] bool; or [1, num_heads, num_queries, num_keys] of
    what is added to scores; None sees all."""

    def attend(self, query: Tensor, key_value: Tensor, scale: float) -> Tensor:
        """Returns [num_seqs, length, num_heads, head_size], or without sequences for a slice."""
        heads, keys_values = self._batched(query[self.queries]), self._batched(key_value[self.keys])
        key, value = keys_values.unbind(dim=2)
        out = F.scaled_dot_product_attention(
            heads.transpose(1, 2),
            key.transpose(1, 2),
            value.transpose(1, 2),
            attn_mask=self.mask,
            scale=scale,
            enable_gqa=query.shape[1] != key_value.shape[2],
        ).transpose(1, 2)
        return out[0] if isinstance(self.queries, slice) else out

    def _batched(self, rows: Tensor) -> Tensor:
        return rows[None] if isinstance(self.queries, slice) else rows


class _Plan:
    """One step."""

    def __init__(self, shape: AttentionShape, batch: Batch) -> None:
        self._shape, self._query_start = shape, batch.query_start
        work = {
            window: list(_plan_work(batch.query_start, window, shape.device))
            for window in dict.fromkeys(shape.sliding_windows)
        }
        self._work_of_layer = [work[window] for window in shape.sliding_windows]

    def __call__(self, query: Tensor, key_value: Tensor, *, layer: int) -> Tensor:
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for work in self._work_of_layer[layer]:
            # A padded place repeats the sequence's last token, and so its result.
            out[work.queries] = work.attend(query, key_value, self._shape.scale)
        return out.flatten(1)

    def attend_with_biases(
        self, query: Tensor, key_value: Tensor, biases: Tensor, *, layer: int
    ) -> Tensor:
        """Satisfies `BiasedAttentionPlan`; one sequence after the other, as each has biases of its
        own length."""
        assert self._shape.sliding_windows[layer] is None, "of no model"
        out = torch.empty_like(query, memory_format=torch.contiguous_format)
        for start, stop in pairwise(self._query_start.tolist()):
            rows, added = slice(start, stop), _of_places(biases, stop - start)
            work = _Work(queries=rows, keys=rows, mask=added[None])
            out[rows] = work.attend(query, key_value, self._shape.scale)
        return out.flatten(1)


class WholeSequenceAttention:
    """Satisfies `AttentionBackend`."""

    block_bytes = 1

    def __init__(self, shape: AttentionShape) -> None:
        """Raises ValueError for a shape that PyTorch's attention does not take."""
        if shape.needs_scores:
            raise ValueError(
                "attention both ways with capped scores or sinks is not supported; use a model "
                "without"
            )
        self._shape = shape

    def bind(self, pool: Tensor) -> None:
        """Takes the pool, which stays as it is."""

    def plan(self, batch: Batch) -> _Plan:
        return _Plan(self._shape, batch)


def _of_places(biases: Tensor, length: int) -> Tensor:
    """Returns the biases of each pair of tokens, [num_heads, length, length]."""
    most = biases.shape[1] // 2
    # The keys of a query lie in a row of the table, which begins a place earlier for each next one.
    return biases.unfold(1, length, 1)[:, most - length + 1 : most + 1].flip(1)


def _plan_work(
    query_start: Int64Array, window: int | None, device: torch.device
) -> Sequence[_Work]:
    """Covers every token of the batch once."""
    lengths = np.diff(query_start)
    is_long = np.zeros(len(lengths), dtype=np.bool_) if window is None else lengths > window
    work = list[_Work]()
    if window is not None:
        for i in np.flatnonzero(is_long).tolist():
            work += _parts(int(query_start[i]), int(query_start[i + 1]), window, device)
    buckets = np.ceil(np.log2(lengths)).astype(np.int64)  # padded to less than twice the length
    for bucket in np.unique(buckets[~is_long]).tolist():
        members = np.flatnonzero(~is_long & (buckets == bucket))
        work.append(_padded(query_start[members], lengths[members], device))
    return work


def _padded(starts: Int64Array, lengths: Int64Array, device: torch.device) -> _Work:
    """Sequences that attend in one call."""
    if len(starts) == 1:
        rows = slice(int(starts[0]), int(starts[0] + lengths[0]))
        return _Work(queries=rows, keys=rows, mask=None)
    steps = np.arange(lengths.max())
    indices = _tensor(starts[:, None] + np.minimum(steps, lengths[:, None] - 1), device)
    is_real = steps < lengths[:, None]
    mask = None if is_real.all() else _tensor(is_real[:, None, None], device)
    return _Work(queries=indices, keys=indices, mask=mask)


def _parts(start: int, stop: int, window: int, device: torch.device) -> Sequence[_Work]:
    """One sequence, whose tokens see those less than `window` positions away."""
    size = max(window, _PART)
    work = []
    for first in range(start, stop, size):
        last = min(first + size, stop)
        keys = slice(max(start, first - window + 1), min(stop, last + window - 1))
        apart = np.arange(first, last)[:, None] - np.arange(keys.start, keys.stop)
        mask = _tensor(np.abs(apart) < window, device)
        work.append(_Work(queries=slice(first, last), keys=keys, mask=mask[None, None]))
    return work


def _tensor(array: NDArray[np.generic], device: torch.device) -> Tensor:
    return torch.from_numpy(array).to(device, non_blocking=True)

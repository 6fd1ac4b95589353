"""The inputs of recorded steps, in device memory that never moves, so that graphs may read it.

A graph serves its number of tokens and sequences, or fewer: the rest is padding. All graphs use the
same memory, each with columns of its own lengths, so that a step is one copy from pinned memory of
what its graph reads. A padding token stores nothing (its slot is negative). Where all sequences
decode, each padding token is a sequence that reads one slot of block 0; else padding sequences have
no tokens, and padding tokens have no sequence. Neither is ever looked at.
"""

from collections.abc import Sequence
from functools import cache
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.input_transfer import PinnedBuffers, StepInputs

_INT64 = 8  # bytes


class GraphSize(NamedTuple):
    """The tokens and sequences that a graph has room for, padding included."""

    num_tokens: int
    num_seqs: int
    is_decode: bool
    """True if each sequence computes one token, whose logits are wanted."""


class Columns(NamedTuple):
    """Inputs of a graph of a size, int64; with a batch's, how long each is."""

    token_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    fed_from: Tensor
    """Index of the draw of the step before that is the token; negative: none is."""
    context_lens: Tensor
    query_start: Tensor
    """[num_seqs + 1]."""
    drawing: Tensor
    """[num_seqs]: tokens that logits are computed of."""


class _Layout(NamedTuple):
    """Place of the columns of a graph in its buffer, in values."""

    starts: tuple[int, ...]
    lengths: tuple[int, ...]
    end: int

    def of(self, values: Any) -> list[Any]:
        """Returns the columns in what begins with them."""
        return [values[s : s + n] for s, n in zip(self.starts, self.lengths, strict=True)]


@cache
def _layout(size: GraphSize) -> _Layout:
    """Columns start at multiples of 16 bytes."""
    tokens, seqs = size.num_tokens, size.num_seqs
    lengths = (tokens, tokens, tokens, tokens, seqs, seqs + 1, seqs)
    *starts, end = [0, *accumulate(length + length % 2 for length in lengths)]
    return _Layout(tuple(starts), lengths, end)


class GraphBuffers:
    """Columns of graphs of any of `sizes`, and their block tables."""

    def __init__(
        self,
        *,
        sizes: Sequence[GraphSize],
        max_blocks: int,
        device: torch.device,
        pinned: PinnedBuffers,
    ) -> None:
        self._pinned = pinned
        max_seqs = max(size.num_seqs for size in sizes)
        num_bytes = _INT64 * max(_layout(size).end for size in sizes)
        num_bytes += max_seqs * max_blocks * np.dtype(np.int32).itemsize
        self._packed = torch.zeros(num_bytes, dtype=torch.uint8, device=device)
        self._tables = torch.zeros(max_seqs, max_blocks, dtype=torch.int32, device=device)

    @property
    def max_blocks(self) -> int:
        return self._tables.shape[1]

    def columns(self, size: GraphSize) -> Columns:
        """Returns the inputs of a graph, padding included."""
        layout = _layout(size)
        packed = self._packed[: layout.end * _INT64].view(torch.int64)
        return Columns(*layout.of(packed))

    def inputs(self, size: GraphSize) -> StepInputs:
        """Returns what the forward pass reads."""
        columns = self.columns(size)
        return StepInputs(
            token_ids=columns.token_ids,
            positions=columns.positions,
            slot_mapping=columns.slot_mapping,
            query_start=columns.query_start,
            context_lens=columns.context_lens,
            block_tables=self._tables[: size.num_seqs],
            most_queries=1 if size.is_decode else size.num_tokens,
        )

    def pad(self, size: GraphSize) -> None:
        """Makes all inputs of a graph padding, for runs without a batch."""
        num_bytes = _layout(size).end * _INT64
        host = self._pinned.next_buffer(num_bytes)
        _fill(host.numpy().view(np.int64), size, None, None)
        self._pinned.send(host, self._packed[:num_bytes])
        self._tables.zero_()

    def fill(self, batch: Batch, size: GraphSize, drawing: Int64Array | None) -> None:
        """Enqueues the copy of a batch that a graph of this size has room for.

        Args:
            drawing: tokens that logits are computed of; None where all sequences decode.
        """
        num_seqs, width = batch.block_tables.shape
        columns_bytes = _layout(size).end * _INT64
        num_bytes = columns_bytes + batch.block_tables.size * batch.block_tables.itemsize
        host = self._pinned.next_buffer(num_bytes)
        packed = host.numpy()
        _fill(packed[:columns_bytes].view(np.int64), size, batch, drawing)
        packed[columns_bytes:].view(np.int32)[:] = batch.block_tables.reshape(-1)
        self._pinned.send(host, self._packed[:num_bytes])
        tables = self._packed[columns_bytes:num_bytes].view(torch.int32).view(num_seqs, width)
        self._tables[:num_seqs, :width].copy_(tables)
        if size.is_decode and num_seqs < size.num_seqs:  # what padding reads
            self._tables[num_seqs : size.num_seqs, :1].zero_()


def _fill(
    packed: Int64Array, size: GraphSize, batch: Batch | None, drawing: Int64Array | None
) -> None:
    """Writes the columns of a batch, or of none, and what pads them."""
    found: tuple[Int64Array | None, ...] = (None,) * len(Columns._fields)
    num_tokens = 0
    if batch is not None:
        num_tokens = len(batch.token_ids)
        found = (
            batch.token_ids,
            batch.positions,
            batch.slot_mapping,
            batch.fed_from,
            batch.context_lens,
            batch.query_start,
            drawing,
        )
    padding = (0, 0, -1, -1, int(size.is_decode), num_tokens, 0)
    columns = _layout(size).of(packed)
    for column, values, other in zip(columns, found, padding, strict=True):
        count = 0 if values is None else len(values)
        if values is not None:
            column[:count] = values
        column[count:] = other
    if size.is_decode:
        columns[Columns._fields.index("query_start")][:] = np.arange(size.num_seqs + 1)

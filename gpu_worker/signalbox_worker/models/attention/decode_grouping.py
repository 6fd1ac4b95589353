"""Decides which sequences of a batch attend together. Pure arithmetic on block counts.

Decodes are batched in groups that are padded to their longest context. A group costs some time
whatever its size, and a padded block costs some: sequences are split into groups where that saves
more padding than a group is worth.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.models.attention.backend import AttentionShape

# A group is worth this many padded blocks; measured with 3 heads of 64 on 2 cores.
_GROUP_COST_BLOCKS = 64
# K and V of a group, gathered: bounds the memory of a step. Smaller groups are no faster.
_GROUP_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Chunk:
    """A sequence that attends alone: a prefill chunk, or a decode without company."""

    start: int
    """Index of its first token in the batch."""
    num_queries: int
    blocks: Int64Array
    """[num_blocks] that hold the keys it sees."""
    keys: slice
    """The keys it sees, within those blocks."""
    window: int | None
    """Window in positions; None if all keys lie within each query's window."""


@dataclass(frozen=True, slots=True)
class DecodeGroup:
    """A group of sequences with one query each."""

    rows: slice | Int64Array
    """Their tokens in the batch; a slice if the group is the whole batch, in order."""
    blocks: Int64Array
    """[num_seqs, num_blocks], padded with each sequence's own first block."""
    visible: NDArray[np.bool_]
    """[num_seqs, num_blocks * block_size]."""


@dataclass(frozen=True, slots=True)
class _Spans:
    """The keys that each sequence sees, as positions and as blocks; all [num_seqs]."""

    first_key: Int64Array
    end_key: Int64Array
    first_block: Int64Array
    num_blocks: Int64Array


def plan_work(batch: Batch, shape: AttentionShape, window: int | None) -> list[Chunk | DecodeGroup]:
    """Covers every token of the batch once."""
    num_queries = np.diff(batch.query_start)
    spans = _spans(batch, num_queries, shape.block_size, window)
    decodes = np.nonzero(num_queries == 1)[0]
    work: list[Chunk | DecodeGroup] = []
    for members in _groups(decodes, spans.num_blocks, _max_blocks(shape)):
        if len(members) == 1:
            work.append(_chunk(batch, spans, int(members[0]), shape.block_size, window))
        else:
            work.append(_decode_group(batch, spans, members, shape.block_size))
    work.extend(
        _chunk(batch, spans, i, shape.block_size, window)
        for i in np.nonzero(num_queries > 1)[0].tolist()
    )
    return work


def _spans(batch: Batch, num_queries: Int64Array, block_size: int, window: int | None) -> _Spans:
    end = batch.context_lens
    first = np.zeros_like(end)
    if window is not None:  # what the first query sees
        first = np.maximum(0, end - num_queries - window + 1)
    first_block = first // block_size
    return _Spans(first, end, first_block, (end - 1) // block_size - first_block + 1)


def _max_blocks(shape: AttentionShape) -> int:
    block_bytes = 2 * shape.num_kv_heads * shape.block_size * shape.head_size * shape.dtype.itemsize
    return max(1, _GROUP_BYTES // block_bytes)


def _groups(members: Int64Array, num_blocks: Int64Array, max_blocks: int) -> list[Int64Array]:
    """Splits sequences into groups; a group that stays whole keeps its order."""
    if len(members) < 2:
        return [members] if len(members) else []
    order = members[np.argsort(num_blocks[members], kind="stable")]
    sizes = num_blocks[order]
    cut = _best_cut(sizes)
    if cut == 0 and len(order) * int(sizes[-1]) > max_blocks:
        cut = len(order) // 2
    if cut == 0:
        return [members]
    return [
        *_groups(np.sort(order[:cut]), num_blocks, max_blocks),
        *_groups(np.sort(order[cut:]), num_blocks, max_blocks),
    ]


def _best_cut(ascending_sizes: Int64Array) -> int:
    """Returns the cut that saves the most padding; 0 if it saves less than a group costs."""
    saved = np.arange(1, len(ascending_sizes)) * (ascending_sizes[-1] - ascending_sizes[:-1])
    best = int(saved.argmax())
    return best + 1 if saved[best] > _GROUP_COST_BLOCKS else 0


def _chunk(batch: Batch, spans: _Spans, i: int, block_size: int, window: int | None) -> Chunk:
    first_block, num_blocks = int(spans.first_block[i]), int(spans.num_blocks[i])
    first_slot = first_block * block_size
    keys = slice(int(spans.first_key[i]) - first_slot, int(spans.end_key[i]) - first_slot)
    start, end = batch.query_start[i : i + 2].tolist()
    if window is not None and keys.stop - keys.start <= window:
        window = None
    return Chunk(
        start=start,
        num_queries=end - start,
        blocks=batch.block_tables[i, first_block : first_block + num_blocks].astype(np.int64),
        keys=keys,
        window=window,
    )


def _decode_group(batch: Batch, spans: _Spans, members: Int64Array, block_size: int) -> DecodeGroup:
    first_block, num_blocks = spans.first_block[members], spans.num_blocks[members]
    steps = np.arange(num_blocks.max())
    columns = first_block[:, None] + np.where(steps < num_blocks[:, None], steps, 0)
    positions = np.arange(len(steps) * block_size) + (first_block * block_size)[:, None]
    seen = positions >= spans.first_key[members, None]
    seen &= positions < spans.end_key[members, None]
    rows = batch.query_start[members]
    return DecodeGroup(
        rows=slice(0, len(rows)) if len(rows) == len(batch.token_ids) else rows,
        blocks=batch.block_tables[members[:, None], columns].astype(np.int64),
        visible=seen,
    )

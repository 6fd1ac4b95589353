"""Batches of trials: sequences by their tokens before and after a step, and their blocks."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.largest_batch import largest_batch
from signalbox_worker.models.attention.backend import AttentionShape


class Span(NamedTuple):
    """The tokens of one sequence that a step computes."""

    start: int
    end: int
    blocks: Int64Array
    """Blocks of its whole context."""


def consecutive_blocks(lengths: Sequence[int], block_size: int) -> list[Int64Array]:
    """Returns the blocks of sequences of these lengths, one sequence after the other."""
    ends = np.cumsum([-(-length // block_size) for length in lengths])
    return [np.arange(start, end) for start, end in zip([0, *ends[:-1]], ends, strict=True)]


def trial_batch(shape: AttentionShape, spans: Sequence[Span]) -> Batch:
    """Makes the batch in which each sequence computes its span."""
    size, num_seqs = shape.block_size, len(spans)
    tables = np.zeros((num_seqs, max(len(span.blocks) for span in spans)), np.int32)
    positions, slots = [], []
    for table, (start, end, blocks) in zip(tables, spans, strict=True):
        table[: len(blocks)] = blocks
        new = np.arange(start, end)
        positions.append(new)
        slots.append(blocks[new // size] * size + new % size)
    lengths = [span.end - span.start for span in spans]
    rows = largest_batch(
        num_tokens=num_seqs, num_seqs=num_seqs, max_model_len=2, block_size=size
    ).rows
    return Batch(
        token_ids=np.zeros(sum(lengths), np.int64),
        positions=np.concatenate(positions),
        slot_mapping=np.concatenate(slots),
        query_start=np.concatenate(([0], np.cumsum(lengths))),
        context_lens=np.array([span.end for span in spans]),
        block_tables=tables,
        rows=rows,
    )

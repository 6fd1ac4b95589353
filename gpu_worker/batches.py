"""Builds the batch of a step from the rows of its sequences, with no loop over them."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.sequence_rows import NO_LOGPROBS, SequenceRows
from gpu_worker.step import Batch, Int64Array, SampleRows, SequenceFailure


@dataclass(slots=True, kw_only=True)
class PlannedBatch:
    """Which sequences compute how many tokens, and which of them draw."""

    seq_ids: Int64Array
    rows: Int64Array
    num_new: Int64Array
    drawers: Int64Array
    """[num draws], index of the sequence among those of the batch."""
    failures: list[SequenceFailure]
    """Sequences that had failed before and are left out."""


def drawers(state: NDArray[Any], num_new: Int64Array) -> Int64Array:
    """Returns the sequence, as an index into the batch, of each token to draw.

    Args:
        state: [B], of the batch's sequences.
        num_new: [B].
    """
    num_tokens = state["num_tokens"]
    drawing = np.flatnonzero(state["num_computed"] + num_new == num_tokens)
    draws = np.where(num_tokens == state["num_prompt"], state["num_samples"], 1)[drawing]
    return np.repeat(drawing, draws)


def build(planned: PlannedBatch, rows: SequenceRows, *, block_size: int) -> Batch:
    """Returns the batch that a runner computes."""
    num_new, size = planned.num_new, block_size
    computed = rows.state["num_computed"][planned.rows]
    query_start = np.zeros(len(num_new) + 1, dtype=np.int64)
    np.cumsum(num_new, out=query_start[1:])
    token_rows = np.repeat(planned.rows, num_new)
    positions = np.repeat(computed, num_new) + offsets(num_new)
    blocks = rows.block_tables[token_rows, positions // size].astype(np.int64)
    context_lens = computed + num_new
    width = -(-int(context_lens.max(initial=0)) // size)
    return Batch(
        token_ids=rows.tokens[token_rows, positions].astype(np.int64),
        positions=positions,
        slot_mapping=blocks * size + positions % size,
        query_start=query_start,
        context_lens=context_lens,
        block_tables=rows.block_tables[planned.rows, :width],
        rows=_sample_rows(planned, rows, query_start),
    )


def _sample_rows(planned: PlannedBatch, rows: SequenceRows, query_start: Int64Array) -> SampleRows:
    drawers = planned.drawers
    owners = planned.rows[drawers]
    state = rows.state[owners]
    num_tokens = state["num_tokens"]
    starved = state["min_tokens"] > num_tokens - state["num_prompt"]
    asked = state["num_logprobs"]
    return SampleRows(
        seq_ids=planned.seq_ids[drawers],
        token_index=query_start[drawers + 1] - 1,
        branch=state["branch"] + _index_in_run(drawers),
        position=np.ascontiguousarray(num_tokens),
        temperature=np.ascontiguousarray(state["temperature"]),
        top_p=np.ascontiguousarray(state["top_p"]),
        top_k=np.ascontiguousarray(state["top_k"]),
        min_p=np.ascontiguousarray(state["min_p"]),
        seed=np.ascontiguousarray(state["seed"]),
        suppressed={
            row: stop
            for row in np.flatnonzero(starved).tolist()
            if (stop := rows.stop_token_ids[owners[row]])
        },
        num_logprobs={
            row: int(asked[row]) for row in np.flatnonzero(asked != NO_LOGPROBS).tolist()
        },
    )


def offsets(lengths: Int64Array) -> Int64Array:
    """Returns 0, 1, ..., lengths[0] - 1, 0, 1, ..., lengths[1] - 1, and so on."""
    ends = np.cumsum(lengths)
    total = int(ends[-1]) if len(ends) else 0
    return np.arange(total, dtype=np.int64) - np.repeat(ends - lengths, lengths)


def _index_in_run(values: Int64Array) -> Int64Array:
    """Returns the index of each element within its run of equal elements."""
    starts = np.flatnonzero(np.diff(values, prepend=-1))
    return offsets(np.diff(starts, append=len(values)))

"""Log probabilities of prompts: the rows of a batch that report them, and runs of a result."""

import math
from collections.abc import Container
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.logprobs import PromptLogprobs
from signalbox_worker.batch.arrays import Int64Array, offsets
from signalbox_worker.batch.batch import Logprobs
from signalbox_worker.batch.sampling_rows import PromptRows
from signalbox_worker.lease.sequences.sequence_columns import SequenceRows


def rows_of(
    state: NDArray[Any],
    row_indices: Int64Array,
    num_new: Int64Array,
    *,
    rows: SequenceRows,
    query_start: Int64Array,
) -> PromptRows | None:
    """Returns the tokens computed now that are followed by a token of the prompt, if requested.

    Args:
        state: [B], state of each sequence before the batch is computed.
        row_indices: [B], row of each sequence in `rows`.
        num_new: [B], tokens that each sequence computes.
        query_start: [B + 1], as in the batch.
    """
    asked = state["num_prompt_logprobs"]
    left = state["num_prompt"] - 1 - state["num_computed"]
    runs = np.flatnonzero((asked >= 0) & (left > 0))
    if not len(runs):
        return None
    lengths = np.minimum(num_new, left)[runs]
    first_position = state["num_computed"][runs] + 1
    positions = np.repeat(first_position, lengths) + offsets(lengths)
    return PromptRows(
        seq_index=runs,
        first_position=first_position,
        lengths=lengths,
        token_index=np.repeat(query_start[runs], lengths) + offsets(lengths),
        targets=rows.tokens[np.repeat(row_indices[runs], lengths), positions],
        num_logprobs=np.repeat(asked[runs], lengths),
    )


def failures(rows: PromptRows, logprobs: list[Logprobs]) -> dict[int, str]:
    """Returns the sequences, as indices into the batch, whose prompt the model cannot compute."""
    if all(math.isfinite(found.logprob) for found in logprobs):
        return {}
    owners = np.repeat(rows.seq_index, rows.lengths).tolist()
    bad = [i for i, found in zip(owners, logprobs, strict=True) if not math.isfinite(found.logprob)]
    return dict.fromkeys(bad, "logits are not finite")


def runs_of(
    seq_ids: Int64Array, rows: PromptRows, logprobs: list[Logprobs], *, failed: Container[int]
) -> list[PromptLogprobs]:
    """Returns the runs of the sequences, by index into the batch, that have not failed.

    Args:
        seq_ids: [B], ids of the sequences of the batch.
    """
    runs, start = [], 0
    columns = (rows.seq_index.tolist(), rows.first_position.tolist(), rows.lengths.tolist())
    for index, first_position, length in zip(*columns, strict=True):
        if index not in failed:
            found = [one.values for one in logprobs[start : start + length]]
            runs.append(PromptLogprobs(int(seq_ids[index]), first_position, found))
        start += length
    return runs

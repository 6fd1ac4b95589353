"""Makes the batches of a model that drafts, whose KV lies in rows of its own."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from signalbox_worker.batch.arrays import Int64Array, offsets
from signalbox_worker.batch.batch import Batch
from signalbox_worker.batch.sampling_rows import NO_LOGPROBS, SampleRows, neutral_filters
from signalbox_worker.runner.draft_model.draft_cache import KeptSequence


class DraftRun(NamedTuple):
    """Tokens of one sequence that a batch computes behind what is computed, and whether it draws
    after them."""

    kept: KeptSequence
    token_ids: list[int]
    draws: bool


def draft_batch(runs: Sequence[DraftRun], *, num_groups: int, block_size: int) -> Batch:
    """Returns a batch that draws the likeliest tokens.

    Args:
        num_groups: groups of layers, of each of which a row has a block.
    """
    kept = [run.kept for run in runs]
    num_new = np.array([len(run.token_ids) for run in runs], dtype=np.int64)
    computed = np.array([one.num_computed for one in kept], dtype=np.int64)
    query_start = np.concatenate([[0], np.cumsum(num_new)])
    positions = np.repeat(computed, num_new) + offsets(num_new)
    rows = np.zeros((len(runs), max(len(one.rows) for one in kept)), dtype=np.int64)
    for table, one in zip(rows, kept, strict=True):
        table[: len(one.rows)] = one.rows
    blocks = rows[:, :, None] * num_groups + np.arange(num_groups)
    owners = np.repeat(np.arange(len(runs)), num_new)
    slots = blocks[owners, positions // block_size] * block_size
    slots += (positions % block_size)[:, None]
    ends = computed + num_new
    draws = np.array([run.draws for run in runs], dtype=np.bool_)
    width = -(-int(ends.max()) // block_size)
    return Batch(
        token_ids=np.array([one for run in runs for one in run.token_ids], dtype=np.int64),
        positions=positions,
        slot_mapping=slots if num_groups > 1 else slots[:, 0],
        query_start=query_start,
        context_lens=ends,
        block_tables=blocks[:, :width].reshape(len(runs), -1).astype(np.int32),
        rows=_greedy_rows(query_start[1:][draws] - 1, ends[draws]),
    )


def _greedy_rows(token_index: Int64Array, position: Int64Array) -> SampleRows:
    """Returns draws of the likeliest tokens."""
    num_rows = len(token_index)
    return SampleRows(
        seq_ids=np.arange(num_rows),
        token_index=token_index,
        branch=np.zeros(num_rows, dtype=np.int64),
        position=position,
        temperature=np.zeros(num_rows, dtype=np.float32),
        filters=neutral_filters(num_rows),
        seed=np.zeros(num_rows, dtype=np.uint64),
        num_logprobs=np.full(num_rows, NO_LOGPROBS),
    )

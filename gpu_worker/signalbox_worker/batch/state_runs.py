"""Runs of a step's tokens, each of which leaves a state of recurrent layers behind.

A table's row of the group of states names the state behind the row's last computed token by its
first block, the head; worker.proto says which of them a step reads and leaves.

The run of a sequence's drafts leaves no state, since draws decide which of them are accepted: the
step leaves the state behind the last known token, and keeps the inputs of its recurrent layers at
the drafts. Then the states behind accepted drafts are settled: these layers alone compute those
rows again.
"""

from typing import NamedTuple

import numpy as np

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_contract.errors import InvalidArgument
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import Int32Array, Int64Array, offsets


class Settlement(NamedTuple):
    """Accepted drafts, behind which states are to be left."""

    rows: Int64Array
    """Their indices among the drafts of the batch that was computed last."""
    states: StateArrays
    """Runs of their sequences, of these drafts alone."""


def state_runs(
    heads: Int32Array,
    blocks: Int32Array,
    computed: Int64Array,
    num_new: Int64Array,
    *,
    block_size: int,
) -> StateArrays:
    """Returns the runs of sequences. Raises InvalidArgument if a table names no state, or one whose
    blocks are not known, where one is read or left.

    Args:
        heads: [B, rows], the first block of each row's state.
        blocks: [num_gpu_blocks, blocks of a state], those of the state that begins with each.
        computed: [B], tokens of each sequence that are computed.
    """
    ends = computed + num_new
    # The row -1 of a sequence that begins is masked below.
    read_rows, last_rows = (computed - 1) // block_size, (ends - 1) // block_size
    first_rows = np.minimum(read_rows + 1, last_rows)
    counts = last_rows - first_rows + 1
    seqs = np.repeat(np.arange(len(ends)), counts)
    rows = first_rows[seqs] + offsets(counts)
    is_last, left = rows == last_rows[seqs], heads[seqs, rows]
    is_left = is_last | (left != NO_BLOCK)
    seqs, rows, is_last, left = seqs[is_left], rows[is_left], is_last[is_left], left[is_left]
    read = heads[np.arange(len(ends)), read_rows]
    begins = computed == 0
    _check_known(np.concatenate([left, read[~begins]]), blocks)
    reads = blocks[read]
    reads[begins] = NO_BLOCK
    run_ends = np.where(is_last, ends[seqs], (rows + 1) * block_size) - computed[seqs]
    query_start = np.cumsum(num_new) - num_new
    return StateArrays(
        first_runs=np.searchsorted(seqs, np.arange(len(ends) + 1)).astype(np.int32),
        run_start=np.concatenate([[0], query_start[seqs] + run_ends]),
        reads=reads,
        writes=blocks[left],
    )


def with_drafts(states: StateArrays, num_drafts: Int64Array) -> StateArrays:
    """Returns the runs of sequences with their drafts behind them.

    Args:
        states: the runs of the tokens before the drafts.
        num_drafts: [B].
    """
    has_drafts = num_drafts > 0
    first_runs = np.cumsum(np.append(0, np.diff(states.first_runs) + has_drafts), dtype=np.int32)
    is_draft = np.zeros(first_runs[-1], dtype=np.bool_)
    is_draft[first_runs[1:][has_drafts] - 1] = True
    lengths = np.empty(len(is_draft), dtype=np.int64)
    lengths[~is_draft], lengths[is_draft] = np.diff(states.run_start), num_drafts[has_drafts]
    writes = np.full((len(is_draft), states.writes.shape[1]), NO_BLOCK, dtype=np.int32)
    writes[~is_draft] = states.writes
    run_start = np.append(0, np.cumsum(lengths))
    return StateArrays(
        first_runs=first_runs, run_start=run_start, reads=states.reads, writes=writes
    )


def settlement(
    heads: Int32Array,
    blocks: Int32Array,
    computed: Int64Array,
    num_drafts: Int64Array,
    num_kept: Int64Array,
    *,
    block_size: int,
) -> Settlement | None:
    """Returns what settles a batch's accepted drafts; None if there are none. Raises
    InvalidArgument, as `state_runs` does.

    Args:
        computed: [B], tokens of each sequence before its drafts.
        num_kept: [B], accepted drafts of each.
    """
    seqs = np.flatnonzero(num_kept)
    if not len(seqs):
        return None
    counts = num_kept[seqs]
    first = (np.cumsum(num_drafts) - num_drafts)[seqs]
    states = state_runs(heads[seqs], blocks, computed[seqs], counts, block_size=block_size)
    return Settlement(np.repeat(first, counts) + offsets(counts), states)


def rows_without_state(states: StateArrays) -> Int64Array:
    """Returns the rows of a batch's drafts: those of runs that leave no state."""
    leaves_none = states.writes[:, 0] == NO_BLOCK
    return np.flatnonzero(np.repeat(leaves_none, np.diff(states.run_start)))


def _check_known(heads: Int32Array, blocks: Int32Array) -> None:
    is_unknown = (heads < 0) | (blocks[heads, 0] != heads)
    if is_unknown.any():
        head = int(heads[np.argmax(is_unknown)])
        allowed = "states whose blocks are known, behind the tokens before and those of the step"
        raise InvalidArgument("block_table", head, allowed)


def first_states(num_new: Int64Array, *, state_blocks: int) -> StateArrays:
    """Returns runs of sequences that begin, all of which leave their state in block 0."""
    num_seqs = len(num_new)
    return StateArrays(
        first_runs=np.arange(num_seqs + 1, dtype=np.int32),
        run_start=np.concatenate([[0], np.cumsum(num_new)]),
        reads=np.full((num_seqs, state_blocks), NO_BLOCK, dtype=np.int32),
        writes=np.zeros((num_seqs, state_blocks), dtype=np.int32),
    )


def state_part(
    states: StateArrays, query_start: Int64Array, start: int, stop: int, seqs: slice
) -> StateArrays:
    """Returns the runs of tokens [start, stop) of a batch; of a run that is cut, the rest reads the
    state that it writes.

    Args:
        query_start: of all sequences of the batch.
        seqs: those of these tokens.
    """
    first = int(np.searchsorted(states.run_start, start, side="right")) - 1
    last = int(np.searchsorted(states.run_start, stop, side="left"))
    reads = states.reads[seqs].copy()
    if start > query_start[seqs.start]:
        before = int(np.searchsorted(states.run_start, start - 1, side="right")) - 1
        reads[0] = states.writes[before]
    first_runs = states.first_runs[seqs.start : seqs.stop + 1]
    return StateArrays(
        first_runs=np.clip(first_runs, first, last) - np.int32(first),
        run_start=np.clip(states.run_start[first : last + 1], start, stop) - start,
        reads=reads,
        writes=states.writes[first:last],
    )

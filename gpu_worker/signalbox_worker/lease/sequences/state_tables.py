"""States of recurrent layers that tables name, as a step leaves them."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from signalbox_contract.cache_groups import NO_BLOCK, state_group
from signalbox_contract.errors import InvalidArgument
from signalbox_kernels.structs import StateArrays
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.state_runs import Settlement, settlement, state_runs
from signalbox_worker.lease.sequences.batch_builder import PlannedBatch
from signalbox_worker.lease.sequences.sequence_columns import SequenceRows
from signalbox_worker.lease.sequences.step_staging import StagedStep
from signalbox_worker.lease.sequences.step_validation import Limits, check_range


def no_states(limits: Limits) -> Int32Array | None:
    """Returns `SequenceRows.state_blocks` before any state is known; None without recurrent
    layers."""
    group = state_group(limits.capacity.groups)
    if group is None:
        return None
    return np.full((limits.num_gpu_blocks, group.state_blocks), NO_BLOCK, dtype=np.int32)


@contextmanager
def naming_states(
    blocks: Int32Array | None, states: Sequence[Sequence[int]], limits: Limits
) -> Iterator[None]:
    """Writes the states of a step to `SequenceRows.state_blocks`, which is large; if the step is
    refused inside, those before are there again. Raises InvalidArgument."""
    if blocks is None:
        raise InvalidArgument("states", len(states), "none, since no layer is recurrent")
    for state in states:
        check_range("states.blocks", state, limits.num_gpu_blocks)
        if len({*state}) != len(state) or len(state) != blocks.shape[1]:
            raise InvalidArgument("states.blocks", f"{state}", f"{blocks.shape[1]} distinct blocks")
    heads = [state[0] for state in states]
    if len({*heads}) != len(heads):
        raise InvalidArgument("states.blocks", len(heads), "states with heads of their own")
    before = blocks[heads]
    blocks[heads] = states
    try:
        yield
    except BaseException:
        blocks[heads] = before
        raise


def states_of(
    planned: PlannedBatch, rows: SequenceRows, staged: StagedStep | None, *, limits: Limits
) -> StateArrays:
    """Returns the states that a batch of a model with recurrent layers reads and leaves.

    Args:
        staged: changes of tables that are not in force yet, if there are any.

    Raises InvalidArgument.
    """
    tables, blocks = rows.block_tables[planned.rows], rows.state_blocks
    if staged is not None and staged.patches is not None:
        staged.patches.apply_to(tables, planned.rows, num_rows=len(rows))
    assert blocks is not None, "of a model without recurrent layers"
    num_groups = len(limits.capacity.groups)
    return state_runs(
        tables[:, num_groups - 1 :: num_groups],
        blocks,
        planned.state["num_computed"],
        planned.num_new,
        block_size=limits.capacity.block_size,
    )


def settlement_of(
    planned: PlannedBatch, rows: SequenceRows, num_kept: Int64Array, *, limits: Limits
) -> Settlement | None:
    """Returns what settles the states of a batch with drafts; None if no draft was accepted, or
    the model has no states.

    Args: num_kept: [B], accepted drafts of each sequence.
    """
    if rows.state_blocks is None:
        return None
    assert planned.drafts is not None, "of a batch with drafts"
    num_groups = len(limits.capacity.groups)
    return settlement(
        rows.block_tables[planned.rows, num_groups - 1 :: num_groups],
        rows.state_blocks,
        planned.state["num_computed"] + planned.num_new - planned.drafts.num_drafts,
        planned.drafts.num_drafts,
        num_kept,
        block_size=limits.capacity.block_size,
    )

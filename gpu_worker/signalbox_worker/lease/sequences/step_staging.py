"""Stages a step that changes the known sequences: checks it whole, and changes nothing.

New data of the step is written to unused rows, block table patches are kept aside, and the
dictionary of sequences is a copy; `SequenceTable` makes them the state once all is checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import NamedTuple

import numpy as np

from signalbox_contract.columns import Column
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import PoolingParams
from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_worker.batch.arrays import Int32Array, Int64Array, offsets
from signalbox_worker.lease.sequences.batch_builder import find_rows
from signalbox_worker.lease.sequences.sequence_columns import NOT_POOLED, SequenceRows
from signalbox_worker.lease.sequences.step_validation import Limits, check_new, check_range


class Patches(NamedTuple):
    """Block table writes: element i is blocks[i] at tables[rows[i], columns[i]]."""

    rows: Int64Array
    columns: Int64Array
    blocks: Int32Array

    def apply_to(self, tables: Int32Array, rows: Int64Array, *, num_rows: int) -> None:
        """Writes to copies of the tables of some rows.

        Args: num_rows: of all sequences.
        """
        places = np.full(num_rows, -1)
        places[rows] = np.arange(len(rows))
        is_here = places[self.rows] >= 0
        here = places[self.rows[is_here]]
        tables[here, self.columns[is_here]] = self.blocks[is_here]


@dataclass(slots=True, kw_only=True)
class StagedStep:
    """The sequences after a step, which are not in force yet."""

    limits: Limits
    rows: SequenceRows
    row_of: dict[int, int]
    free: list[int]
    failed: dict[int, str]
    num_blocks: Int64Array
    """Number of blocks of every row, patches included."""
    released: list[int] = field(default_factory=list)
    """Rows that are free once the step is applied."""
    patches: Patches | None = None

    def stage(self, step: Step) -> None:
        """Stages all but the batch. Raises InvalidArgument if the step is not allowed."""
        self._finish(step.finished)
        if step.forks:
            self._fork(step.forks)
        pooling = step.pooling or {}
        for new in step.new:
            self._add(new, pooling.get(new.seq_id, NOT_POOLED))
        if step.patches:
            self.num_blocks = self.rows.state["num_blocks"].copy()
            self.patches = self._patch(step.patches)

    def _finish(self, finished: Column) -> None:
        for seq_id in finished.tolist():
            self.released.append(_known(self.row_of, seq_id, "finished_seq_ids"))
            del self.row_of[seq_id]
            self.failed.pop(seq_id, None)

    def _fork(self, forks: Sequence[Fork]) -> None:
        check_range(
            "forks.token_ids", [fork.token_id for fork in forks], self.limits.model.vocab_size
        )
        sources = [_known(self.row_of, fork.parent, "forks.parent_seq_ids") for fork in forks]
        reasons = [self.failed.get(fork.parent) for fork in forks]
        children = set[int]()
        for fork, source, reason in zip(forks, sources, reasons, strict=True):
            self._check_fork(fork, source, children)
            children.add(fork.child)
            if fork.child == fork.parent:
                self.released.append(source)
            target = self.free.pop()
            self.rows.fork(source, target, fork)
            self.row_of[fork.child] = target
            if reason is not None:
                self.failed[fork.child] = reason

    def _check_fork(self, fork: Fork, source: int, children: set[int]) -> None:
        state = self.rows.state[source]
        if fork.child in children or (fork.child in self.row_of and fork.child != fork.parent):
            raise InvalidArgument("forks.child_seq_ids", fork.child, "a sequence not known yet")
        if fork.child < 0:
            raise InvalidArgument("forks.child_seq_ids", fork.child, "at least 0")
        if fork.branch < 0:
            raise InvalidArgument("forks.branches", fork.branch, "at least 0")
        if state["num_computed"] < state["num_prompt"]:
            raise InvalidArgument(
                "forks.parent_seq_ids", fork.parent, "a sequence whose prompt is computed"
            )

    def _add(self, new: NewSequence, pooling: PoolingParams) -> None:
        if new.seq_id in self.row_of:
            raise InvalidArgument(
                "new_groups.sequences.seq_id", new.seq_id, "a sequence not known yet"
            )
        check_new(new, self.limits)
        row = self.free.pop()
        self.rows.write(row, new, pooling)
        self.row_of[new.seq_id] = row

    def _patch(self, patches: Sequence[TablePatch]) -> Patches:
        seq_ids = [patch.seq_id for patch in patches]
        rows = find_rows(self.row_of, seq_ids, "block_table_patches.seq_ids")
        blocks = np.fromiter(chain.from_iterable(patch.blocks for patch in patches), dtype=np.int64)
        self.limits.check_blocks("block_table_patches.blocks", blocks)
        ends = self._table_ends(rows.tolist(), patches)
        self.num_blocks[list(ends)] = list(ends.values())
        firsts = np.array([patch.first_index for patch in patches], dtype=np.int64)
        lengths = np.array([len(patch.blocks) for patch in patches], dtype=np.int64)
        return Patches(
            rows=np.repeat(rows, lengths),
            columns=np.repeat(firsts, lengths) + offsets(lengths),
            blocks=blocks.astype(np.int32),
        )

    def _table_ends(self, rows: list[int], patches: Sequence[TablePatch]) -> dict[int, int]:
        """Returns how many blocks each patched row has after the patches, applied in order."""
        ends: dict[int, int] = {}
        max_blocks = self.limits.max_blocks
        for row, patch in zip(rows, patches, strict=True):
            have = ends.get(row)
            if have is None:
                have = int(self.num_blocks[row])
            first, end = patch.first_index, patch.first_index + len(patch.blocks)
            if not 0 <= first <= have or end > max_blocks:
                raise InvalidArgument(
                    "block_table_patches.first_index",
                    first,
                    f"in [0, {have}], and a table of at most {max_blocks} blocks",
                )
            ends[row] = max(have, end)
        return ends


def _known(row_of: dict[int, int], seq_id: int, field: str) -> int:
    row = row_of.get(seq_id)
    if row is None:
        raise InvalidArgument(field, seq_id, "a sequence that this worker knows")
    return row

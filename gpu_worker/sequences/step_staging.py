"""Stages a step: checks it whole against the sequences that are known, and changes nothing.

New data of the step is written to unused rows, block table patches are kept aside, and the
dictionary of sequences is a copy; `SequenceTable` makes them the state once all is checked.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from typing import NamedTuple

import numpy as np

from contract.columns import Column
from contract.errors import InvalidArgument
from contract.model import ModelInfo, WorkerCapacity
from contract.sections.forks import Fork
from contract.step import NewSequence, Step, TablePatch
from gpu_worker.batch.arrays import Int32Array, Int64Array
from gpu_worker.batch.sequence_failures import sequence_failure
from gpu_worker.sequences.batch_builder import PlannedBatch, drawers, offsets
from gpu_worker.sequences.sequence_columns import SequenceRows
from gpu_worker.sequences.step_validation import check_new, check_range


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits that the steps of a lease are checked against."""

    model: ModelInfo
    capacity: WorkerCapacity
    num_gpu_blocks: int

    @property
    def max_blocks(self) -> int:
        """Blocks of the longest sequence."""
        return -(-self.model.max_model_len // self.capacity.block_size)


class Patches(NamedTuple):
    """Block table writes: element i is blocks[i] at tables[rows[i], columns[i]]."""

    rows: Int64Array
    columns: Int64Array
    blocks: Int32Array


@dataclass(slots=True, kw_only=True)
class StagedStep:
    """The state after a step, which is not in force yet."""

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

    def stage(self, step: Step) -> PlannedBatch:
        """Raises InvalidArgument if the step is not allowed."""
        self._finish(step.finished)
        if step.forks:
            self._fork(step.forks)
        for new in step.new:
            self._add(new)
        if step.patches:
            self.num_blocks = self.rows.state["num_blocks"].copy()
            self.patches = self._patch(step.patches)
        return self._plan(step)

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
        if fork.branch < 0:
            raise InvalidArgument("forks.branches", fork.branch, "at least 0")
        if state["num_computed"] < state["num_prompt"]:
            raise InvalidArgument(
                "forks.parent_seq_ids", fork.parent, "a sequence whose prompt is computed"
            )

    def _add(self, new: NewSequence) -> None:
        if new.seq_id in self.row_of:
            raise InvalidArgument(
                "new_groups.sequences.seq_id", new.seq_id, "a sequence not known yet"
            )
        check_new(
            new,
            model=self.limits.model,
            capacity=self.limits.capacity,
            num_gpu_blocks=self.limits.num_gpu_blocks,
        )
        row = self.free.pop()
        self.rows.write(row, new)
        self.row_of[new.seq_id] = row

    def _patch(self, patches: Sequence[TablePatch]) -> Patches:
        seq_ids = [patch.seq_id for patch in patches]
        rows = _find(self.row_of, seq_ids, "block_table_patches.seq_ids")
        blocks = np.fromiter(chain.from_iterable(patch.blocks for patch in patches), dtype=np.int64)
        check_range("block_table_patches.blocks", blocks, self.limits.num_gpu_blocks)
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

    def _plan(self, step: Step) -> PlannedBatch:
        seq_ids = [*step.running_seq_ids.tolist(), *(new.seq_id for new in step.new)]
        num_new = step.running_num_new_tokens.array().astype(np.int64)
        if step.new:
            added = np.array([new.num_new_tokens for new in step.new], dtype=np.int64)
            num_new = np.concatenate([num_new, added])
        self._check_size(seq_ids, num_new)
        rows = _find(self.row_of, seq_ids, "running.seq_ids")
        ids = np.array(seq_ids, dtype=np.int64)
        failures = {}
        if self.failed:
            failures = {s: sequence_failure(self.failed[s]) for s in seq_ids if s in self.failed}
            alive = np.array([s not in self.failed for s in seq_ids], dtype=np.bool_)
            ids, rows, num_new = ids[alive], rows[alive], num_new[alive]
        self._check_running(ids, rows, num_new)
        return PlannedBatch(
            seq_ids=ids,
            rows=rows,
            num_new=num_new,
            drawers=drawers(self.rows.state[rows], num_new),
            failures=failures,
        )

    def _check_size(self, seq_ids: list[int], num_new: Int64Array) -> None:
        limit = self.limits.capacity
        if len(seq_ids) > limit.max_num_seqs:
            raise InvalidArgument("sequences", len(seq_ids), f"at most {limit.max_num_seqs} a step")
        if len(num_new) and num_new.min() < 1:
            raise InvalidArgument("running.num_new_tokens", int(num_new.min()), "at least 1")
        if num_new.sum() > limit.max_num_batched_tokens:
            raise InvalidArgument(
                "num_new_tokens",
                int(num_new.sum()),
                f"at most {limit.max_num_batched_tokens} a step",
            )
        if len(set(seq_ids)) != len(seq_ids):
            raise InvalidArgument("running.seq_ids", "a repeated sequence", "distinct sequences")

    def _check_running(self, ids: Int64Array, rows: Int64Array, num_new: Int64Array) -> None:
        state = self.rows.state
        end = state["num_computed"][rows] + num_new
        known = np.minimum(state["num_tokens"][rows], self.limits.model.max_model_len)
        room = self.num_blocks[rows] * self.limits.capacity.block_size
        if (end > known).any():
            i = int(np.argmax(end > known))
            raise InvalidArgument(
                "running.num_new_tokens",
                int(num_new[i]),
                f"at most {int(known[i] - end[i] + num_new[i])}: the tokens of sequence "
                f"{ids[i]} that are known and not computed",
            )
        if (end > room).any():
            i = int(np.argmax(end > room))
            raise InvalidArgument(
                "block_table",
                f"{self.num_blocks[rows[i]]} blocks of sequence {ids[i]}",
                f"room for {end[i]} tokens",
            )


def _known(row_of: dict[int, int], seq_id: int, field: str) -> int:
    row = row_of.get(seq_id)
    if row is None:
        raise InvalidArgument(field, seq_id, "a sequence that this worker knows")
    return row


def _find(row_of: dict[int, int], seq_ids: Sequence[int], field: str) -> Int64Array:
    rows = np.fromiter(map(row_of.get, seq_ids, repeat(-1)), dtype=np.int64, count=len(seq_ids))
    if (rows < 0).any():
        raise InvalidArgument(
            field, seq_ids[int(np.argmin(rows))], "a sequence that this worker knows"
        )
    return rows

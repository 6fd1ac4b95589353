"""The decode columns: groups that decode a token a step, planned and accepted by array operations.

A group is in the columns while each of its unfinished sequences decodes in blocks of its own.
Its counters are then columns here, not the attributes of its sequences; `release` writes them back,
and comes before anything else is done to the group. What a step costs is then a few operations on
arrays, and a little for each sequence that crosses into a new block, ends or is drained.
"""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from contract.step import TablePatch
from scheduler_svc.kv.block_manager import BlockSpaceManager
from scheduler_svc.planning.plan import StepPlan
from scheduler_svc.queue.admission_queue import AdmissionQueue
from scheduler_svc.requests.sequence import Counters, Sequence, SequenceStatus
from scheduler_svc.requests.sequence_group import SequenceGroup

Column = NDArray[np.int64]

MAX_STALE_FLOWS = 64
MOST_QUIET = 16
"""Sequences of decode columns that are looked at for the steps in which nothing happens to any."""


class DecodeColumns:
    """Columns of [num_sequences]; row i is that of seqs[i]."""

    def __init__(self, blocks: BlockSpaceManager, admission: AdmissionQueue) -> None:
        self.seqs: list[Sequence] = []
        self._seq_ids: list[int] = []
        self._blocks = blocks
        self._admission = admission
        self._flow_indices: dict[str, int] = {}
        self._flows = np.empty(0, dtype=np.int64)  # index of the flow that tokens are charged to
        self._planned = np.empty(0, dtype=np.int64)
        self._computed = np.empty(0, dtype=np.int64)
        self._room = np.empty(0, dtype=np.int64)  # tokens that fit the block table
        self._end = np.empty(0, dtype=np.int64)  # tokens at which the sequence has its last
        self._stop_token_ids: set[int] = set()  # of all of them
        # Numbers of steps in which no sequence needs a block or has its last token (plans), or
        # completes a block or may end by its length (answers). 0 is unknown.
        self._quiet_plans = 0
        self._quiet_answers = 0

    def join(self, groups: Iterable[SequenceGroup]) -> None:
        """Adds groups for which `can_join` holds."""
        seqs = [seq for group in groups for seq in group.unfinished]
        if not seqs:
            return
        if len(self._flow_indices) > 2 * len(self.seqs) + MAX_STALE_FLOWS:
            self._forget_flows()
        for row, seq in enumerate(seqs, start=len(self.seqs)):
            seq.decode_row = row
            seq.group.has_decode_rows = True
        self.seqs = self.seqs + seqs
        self._seq_ids += [seq.seq_id for seq in seqs]
        self._planned = _extended(self._planned, [seq.num_planned_tokens for seq in seqs])
        self._computed = _extended(self._computed, [seq.num_computed_tokens for seq in seqs])
        size = self._blocks.block_size
        self._room = _extended(self._room, [len(seq.block_table) * size for seq in seqs])
        self._end = _extended(self._end, [seq.group.max_length for seq in seqs])
        self._flows = _extended(self._flows, [self._flow_index(seq.group.flow) for seq in seqs])
        self._find_stop_tokens()
        self._quiet_plans = self._quiet_answers = 0

    def can_join(self, group: SequenceGroup) -> bool:
        """Says whether all unfinished sequences decode, each at its pace.

        Each writes to a block of its own then: it got one when it first decoded. A prefill of one
        token looks like a decode until its answer, which is the group's first token.
        """
        if group.suspicion is not None or group.times.first_token is None:
            return False
        return not group.awaits_answers and all(
            seq.status is SequenceStatus.RUNNING
            and seq.is_on_worker
            and seq.num_remaining_tokens == 1
            and seq.num_inflight_tokens == seq.num_inflight_samples  # no prefill is on its way
            for seq in group.unfinished
        )

    def release(self, *groups: SequenceGroup) -> None:
        """Removes groups and writes their counters back; ignores groups that are not in."""
        leaving = {group for group in groups if group.has_decode_rows}
        if not leaving:
            return
        staying = np.ones(len(self.seqs), dtype=np.bool_)
        for group in leaving:
            group.has_decode_rows = False
            for seq in group.sequences:
                if seq.decode_row >= 0:
                    staying[seq.decode_row] = False
                    self._write_back(seq)
        self.seqs = [seq for seq in self.seqs if seq.decode_row >= 0]
        self._seq_ids = [seq.seq_id for seq in self.seqs]
        for row, seq in enumerate(self.seqs):
            seq.decode_row = row
        self._planned, self._computed = self._planned[staying], self._computed[staying]
        self._room, self._end = self._room[staying], self._end[staying]
        self._flows = self._flows[staying]
        self._quiet_plans = self._quiet_answers = 0

    def release_all(self) -> None:
        self.release(*{seq.group for seq in self.seqs})

    def _write_back(self, seq: Sequence) -> None:
        counters, seq.decode_row = self.counters(seq), -1
        seq.num_computed_tokens = counters.num_computed_tokens
        seq.num_inflight_tokens = counters.num_inflight_tokens
        seq.num_inflight_samples = counters.num_inflight_samples

    def counters(self, seq: Sequence) -> Counters:
        """Returns how far a sequence is, in the columns or not."""
        if seq.decode_row < 0:
            return seq.counters
        computed = int(self._computed[seq.decode_row])
        inflight = int(self._planned[seq.decode_row]) - computed
        return Counters(computed, inflight, inflight)

    def plan(self, plan: StepPlan) -> bool:
        """Adds the next token of each; returns False if blocks or budget do not suffice."""
        if self._quiet_plans and len(self.seqs) <= plan.token_budget:
            self._quiet_plans -= 1
            plan.add_decodes(self.seqs, self._seq_ids)
            self._planned += 1
            return True
        rows = np.flatnonzero(self._planned + 1 < self._end)
        needy = rows[self._planned[rows] >= self._room[rows]]
        if len(rows) > plan.token_budget or len(needy) > self._blocks.gpu.num_free:
            return False
        for row in needy.tolist():
            self._append_block(plan, row)
        seqs, seq_ids = self.seqs, self._seq_ids
        if len(rows) < len(seqs):
            seqs = [seqs[row] for row in rows.tolist()]
            seq_ids = [seq.seq_id for seq in seqs]
        plan.add_decodes(seqs, seq_ids)
        self._planned[rows] += 1
        self._quiet_plans = self._find_quiet(np.minimum(self._room, self._end - 1) - self._planned)
        return True

    def _find_quiet(self, distances: Column) -> int:
        """Returns in how many steps nothing happens; 0 if there are too many sequences.

        Among as many sequences as a block has tokens, one completes a block in nearly every step.
        """
        return max(0, int(distances.min())) if 0 < len(distances) <= MOST_QUIET else 0

    def _append_block(self, plan: StepPlan, row: int) -> None:
        seq = self.seqs[row]
        block = self._blocks.append_block(seq)
        plan.patches.append(TablePatch(seq.seq_id, seq.num_sent_blocks, (block,)))
        seq.num_sent_blocks += 1
        self._room[row] += self._blocks.block_size

    def count_tokens(self, seqs: list[Sequence], token_ids: list[int]) -> list[int]:
        """Counts a drawn token of each of some sequences in the columns, which they hold already.

        Caches the blocks that are completed. Returns the indices of sequences that may end with
        their token: by their length, or because it is a stop token of a sequence in the columns.
        """
        if self._quiet_answers and seqs == self.seqs:
            self._quiet_answers -= 1
            self._computed += 1
            self._charge(self._flows, seqs)
            may_end = []
        else:
            may_end = self._advance(seqs)
        stop_token_ids = self._stop_token_ids
        stopped = [i for i, token_id in enumerate(token_ids) if token_id in stop_token_ids]
        return sorted({*may_end, *stopped}) if stopped else may_end

    def _advance(self, seqs: list[Sequence]) -> list[int]:
        """Counts a computed token of each; returns the indices of those that have all of theirs."""
        rows = np.array([seq.decode_row for seq in seqs], dtype=np.int64)
        self._computed[rows] += 1
        computed, size = self._computed[rows], self._blocks.block_size
        self._charge(self._flows[rows], seqs)
        in_block = computed % size
        for index in np.flatnonzero(in_block == 0).tolist():
            seqs[index].num_computed_tokens = int(computed[index])
            self._blocks.cache_blocks(seqs[index])
        left = self._end[rows] - 1 - computed
        is_whole = len(seqs) == len(self.seqs)
        distances = np.minimum(size - in_block, left) - 1
        self._quiet_answers = self._find_quiet(distances) if is_whole else 0
        may_end: list[int] = np.flatnonzero(left <= 0).tolist()
        return may_end

    def _flow_index(self, flow: str) -> int:
        return self._flow_indices.setdefault(flow, len(self._flow_indices))

    def _forget_flows(self) -> None:
        """Drops the indices of flows that have left."""
        self._flow_indices.clear()
        indices = [self._flow_index(seq.group.flow) for seq in self.seqs]
        self._flows = np.array(indices, dtype=np.int64)

    def _charge(self, flows: Column, seqs: list[Sequence]) -> None:
        """Charges each flow the tokens of the sequences, of which `flows` has the indices."""
        if not seqs or not self._admission.charges:
            return
        if len(self._flow_indices) == 1:
            (flow,) = self._flow_indices
            served = (seq.group for seq in seqs)
            self._admission.charge(flow, served, num_output_tokens=len(seqs))
            return
        counts = np.bincount(flows, minlength=len(self._flow_indices))
        for flow, count in zip(self._flow_indices, counts.tolist(), strict=True):
            if count:
                served = (seq.group for seq in seqs if seq.group.flow == flow)
                self._admission.charge(flow, served, num_output_tokens=count)

    def _find_stop_tokens(self) -> None:
        """Collects the stop tokens of all groups; those of a group that has left may stay."""
        self._stop_token_ids = {
            token_id for seq in self.seqs for token_id in seq.group.params.stop_token_ids
        }

    def check(self) -> None:
        """Asserts that rows belong to their sequences and that none writes a shared block."""
        assert [seq.decode_row for seq in self.seqs] == list(range(len(self.seqs)))
        assert self._seq_ids == [seq.seq_id for seq in self.seqs]
        flows = list(self._flow_indices)
        assert [flows[index] for index in self._flows] == [seq.group.flow for seq in self.seqs]
        for seq, planned, room in zip(self.seqs, self._planned, self._room, strict=True):
            assert seq.group.has_decode_rows
            assert room == len(seq.block_table) * self._blocks.block_size
            assert planned <= room
            index = int(planned) // self._blocks.block_size
            is_next = index == len(seq.block_table)
            assert is_next or not self._blocks.gpu.is_shared(seq.block_table[index])
        if self.seqs:
            self._check_quiet()

    def _check_quiet(self) -> None:
        """Asserts that no sequence is skipped in a step in which something happens to it."""
        size, last = self._blocks.block_size, self._end - 1
        to_plan = np.minimum(self._room, last) - self._planned
        to_accept = np.minimum(size - self._computed % size, last - self._computed) - 1
        assert self._quiet_plans <= max(0, to_plan.min())
        assert self._quiet_answers <= max(0, to_accept.min())


def _extended(column: Column, values: list[int]) -> Column:
    return np.concatenate([column, np.array(values, dtype=np.int64)])

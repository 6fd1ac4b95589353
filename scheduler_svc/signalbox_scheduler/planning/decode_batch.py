"""The decode batch: groups that decode a token a step, planned and accepted all at once.

A group is in the decode batch while each of its unfinished sequences decodes in blocks of its own.
Its counters are then here, not the attributes of its sequences; `release` writes them back, and
comes before anything else is done to the group. All counters grow by one with each step, so the
step in which a sequence needs a block, or has its last token, is known in advance: what a step
costs is a few operations on lists, and a little for each sequence to which something happens.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TypeVar

from signalbox_contract.columns import Column, int64s
from signalbox_contract.step import TablePatch
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.queue.admission_queue import AdmissionQueue
from signalbox_scheduler.requests.sequence_group import (
    Counters,
    Sequence,
    SequenceGroup,
    SequenceStatus,
)

T = TypeVar("T")
Boundaries = dict[Sequence, int]
"""Number of planned tokens at which a sequence has filled a block, or computes no more."""


class DecodeBatch:
    """Its lists have an entry for each of `seqs`, in their order."""

    def __init__(self, blocks: BlockSpaceManager, admission: AdmissionQueue) -> None:
        self.seqs: list[Sequence] = []
        self._blocks = blocks
        self._admission = admission
        self._growing: list[Sequence] = []
        """Sequences that have tokens left to plan; the others wait for their last answers."""
        self._growing_ids = int64s([])
        self._num_plans = 0  # of all that grow
        self._num_answers = 0  # to all
        self._planned: list[int] = []  # tokens, less `_num_plans`
        self._computed: list[int] = []  # tokens, less `_num_answers`
        self._due: dict[int, Boundaries] = {}
        """Next boundary of each sequence, by the number of plans with which it is reached."""
        self._reached: Boundaries = {}
        """Boundaries at which sequences are: they grow no more, or may need a block."""
        self._flows: Counter[str] = Counter()
        """Number of sequences of each flow that tokens are charged to."""
        self._stop_token_ids: Counter[int] = Counter()
        """Number of sequences that each token stops."""

    def join(self, groups: Iterable[SequenceGroup]) -> None:
        """Adds groups for which `can_join` holds."""
        seqs = [seq for group in groups for seq in group.unfinished]
        if not seqs:
            return
        for row, seq in enumerate(seqs, start=len(self.seqs)):
            seq.decode_index = row
            seq.group.is_in_decode_batch = True
        self.seqs = self.seqs + seqs
        self._planned += [seq.num_planned_tokens - self._num_plans for seq in seqs]
        self._computed += [seq.num_computed_tokens - self._num_answers for seq in seqs]
        for seq in seqs:
            planned = seq.num_planned_tokens
            self._await(seq, planned)
            if planned % self._blocks.block_size == 0 or planned == _last(seq):
                self._reached[seq] = planned
        self._growing = self._growing + seqs
        self._growing_ids = int64s(self._growing_ids.tolist() + [seq.seq_id for seq in seqs])
        self._flows.update(seq.group.flow for seq in seqs)
        self._stop_token_ids.update(_stop_token_ids(seqs))

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
            and not seq.num_inflight_drafts
            for seq in group.unfinished
        )

    def release(self, *groups: SequenceGroup) -> None:
        """Removes groups and writes their counters back; ignores groups that are not in."""
        leaving = [seq for group in set(groups) for seq in group.sequences if seq.decode_index >= 0]
        if not leaving:
            return
        leaving.sort(key=_row)
        self._stop_growing([seq for seq in leaving if self._grows(seq)])
        for seq in leaving:
            seq.group.is_in_decode_batch = False
            self._reached.pop(seq, None)
            due_at = self._num_plans + self._num_plans_left(seq, self._num_planned(seq))
            if due_at in self._due:
                self._due[due_at].pop(seq, None)
        rows = [seq.decode_index for seq in leaving]
        for seq in leaving:
            self._write_back(seq)
        self.seqs = self.seqs.copy()
        for row in reversed(rows):
            del self.seqs[row], self._planned[row], self._computed[row]
        for row, seq in enumerate(self.seqs[rows[0] :], start=rows[0]):
            seq.decode_index = row
        _subtract(self._flows, (seq.group.flow for seq in leaving))
        _subtract(self._stop_token_ids, _stop_token_ids(leaving))

    def release_all(self) -> None:
        self.release(*{seq.group for seq in self.seqs})

    def _write_back(self, seq: Sequence) -> None:
        counters, seq.decode_index = self.counters(seq), -1
        seq.num_computed_tokens = counters.num_computed_tokens
        seq.num_inflight_tokens = counters.num_inflight_tokens
        seq.num_inflight_samples = counters.num_inflight_samples
        if seq.block_table:
            self._blocks.cache_blocks(seq)  # the batch frees blocks behind windows at whole rows

    def counters(self, seq: Sequence) -> Counters:
        """Returns how far a sequence is, in the decode batch or not."""
        if seq.decode_index < 0:
            return seq.counters
        computed = self._num_computed(seq)
        inflight = self._num_planned(seq) - computed
        return Counters(computed, inflight, inflight)

    def _num_planned(self, seq: Sequence) -> int:
        return min(self._num_plans + self._planned[seq.decode_index], _last(seq))

    def _num_computed(self, seq: Sequence) -> int:
        return self._num_answers + self._computed[seq.decode_index]

    def _grows(self, seq: Sequence) -> bool:
        """Says whether a sequence has tokens left to plan, or had until the newest plan."""
        return seq in self._reached or self._num_planned(seq) < _last(seq)

    def _stop_growing(self, seqs: list[Sequence]) -> None:
        """Removes some of the sequences that grow, in the order of their rows."""
        if not seqs:
            return
        growing, ids = self._growing.copy(), self._growing_ids.tolist().copy()
        index = 0
        for seq in seqs:
            index = growing.index(seq, index)
            del growing[index], ids[index]
        self._growing, self._growing_ids = growing, int64s(ids)

    # Planning

    def plan(self, plan: StepPlan) -> bool:
        """Adds the next token of each; returns False if blocks or budget do not suffice."""
        if len(self._growing) > plan.token_budget:
            return False
        if self._reached and not self._pass_boundaries(plan):
            return False
        self._num_plans += 1
        self._reached = self._due.pop(self._num_plans, {})
        for seq, planned in self._reached.items():
            self._await(seq, planned)
        plan.add_decodes(self._growing, self._growing_ids, reached=list(self._reached))
        return True

    def _pass_boundaries(self, plan: StepPlan) -> bool:
        """Appends blocks, and drops those that have no tokens left; False if blocks are short."""
        size, num_groups = self._blocks.block_size, self._blocks.num_groups
        ends: list[Sequence] = []
        needy: list[Sequence] = []
        for seq, planned in self._reached.items():
            if planned == _last(seq):
                ends.append(seq)
            elif planned * num_groups == len(seq.block_table) * size:
                needy.append(seq)
        if not self._blocks.append_rows(needy):
            return False
        for seq in needy:
            first, seq.num_sent_blocks = seq.num_sent_blocks, len(seq.block_table)
            plan.patches.append(TablePatch(seq.seq_id, first, seq.block_table[first:]))
        self._stop_growing(sorted(ends, key=_row))
        self._reached = {}
        return True

    def _await(self, seq: Sequence, planned: int) -> None:
        """Notes with which plan a sequence reaches its next boundary, if it has one."""
        if num_left := self._num_plans_left(seq, planned):
            self._due.setdefault(self._num_plans + num_left, {})[seq] = planned + num_left

    def _num_plans_left(self, seq: Sequence, planned: int) -> int:
        """Returns after how many plans that is; 0 if there is none."""
        size = self._blocks.block_size
        return min(size - planned % size, _last(seq) - planned)

    # Answers

    def count_tokens(self, seqs: list[Sequence], reached: list[Sequence]) -> list[Sequence]:
        """Counts a computed token of each of some sequences in the decode batch.

        Caches the blocks that are completed.

        Args:
            reached: those of them that may have completed a block, or have their last token.

        Returns:
            Those that have their last token.
        """
        if len(seqs) == len(self.seqs):
            self._num_answers += 1
        else:
            for seq in seqs:
                self._computed[seq.decode_index] += 1
        if seqs and self._admission.charges:
            self._charge(seqs)
        size = self._blocks.block_size
        may_end = []
        for seq in reached:
            computed = self._num_computed(seq)
            if computed % size == 0:
                seq.num_computed_tokens = computed
                self._blocks.cache_blocks(seq)
            if computed >= _last(seq):
                may_end.append(seq)
        return may_end

    def find_stopped(self, seqs: list[Sequence], token_ids: list[int]) -> list[Sequence]:
        """Returns those whose token is a stop token of a sequence in the decode batch."""
        stop_token_ids = self._stop_token_ids
        if stop_token_ids.keys().isdisjoint(token_ids):
            return []
        pairs = zip(seqs, token_ids, strict=True)
        return [seq for seq, token_id in pairs if token_id in stop_token_ids]

    def _charge(self, seqs: list[Sequence]) -> None:
        counts = self._flows
        if len(seqs) < len(self.seqs):
            counts = Counter(seq.group.flow for seq in seqs)
        for flow, count in counts.items():
            served = (seq.group for seq in seqs if seq.group.flow == flow)
            self._admission.charge(flow, served, num_output_tokens=count)

    def check(self) -> None:
        """Asserts that rows belong to their sequences and that none writes a shared block."""
        assert [seq.decode_index for seq in self.seqs] == list(range(len(self.seqs)))
        assert len(self._planned) == len(self._computed) == len(self.seqs)
        assert self._growing_ids == _ids_of(self._growing)
        assert self._growing == sorted(self._growing, key=_row)
        assert self._flows == Counter(seq.group.flow for seq in self.seqs)
        assert self._stop_token_ids == Counter(_stop_token_ids(self.seqs))
        size, num_groups, at_end = self._blocks.block_size, self._blocks.num_groups, []
        for seq in self.seqs:
            assert seq.group.is_in_decode_batch
            planned, room = self._num_planned(seq), len(seq.block_table) // num_groups * size
            assert self._num_computed(seq) <= planned <= min(room, _last(seq))
            index = planned // size * num_groups
            row = seq.block_table[index : index + num_groups]
            assert not any(map(self._blocks.gpu.is_shared, held(row)))
            assert planned == _last(seq) or seq in self._growing
            at_end += [seq] if planned == _last(seq) else []
        self._check_due(set(at_end))

    def _check_due(self, at_end: set[Sequence]) -> None:
        """Asserts that no sequence is passed by in a plan in which something happens to it."""
        due = {seq: number for number, seqs in self._due.items() for seq in seqs}
        assert due == {
            seq: self._num_plans + self._num_plans_left(seq, self._num_planned(seq))
            for seq in self.seqs
            if seq not in at_end
        }
        in_need = [
            seq
            for seq in self._growing
            if seq in at_end
            or self._num_planned(seq) == self._blocks.num_tokens(len(seq.block_table))
        ]
        assert set(in_need) <= self._reached.keys() <= set(self.seqs)
        for seq, planned in self._reached.items():
            assert planned == self._num_planned(seq)


def _last(seq: Sequence) -> int:
    """Returns how many tokens are computed when the sequence has its last, which never is."""
    return seq.group.max_length - 1


def _row(seq: Sequence) -> int:
    return seq.decode_index


def _ids_of(seqs: list[Sequence]) -> Column:
    return int64s([seq.seq_id for seq in seqs])


def _subtract(counts: Counter[T], elements: Iterable[T]) -> None:
    """Counts each element once less, and forgets those that are counted no more."""
    for element in elements:
        counts[element] -= 1
        if not counts[element]:
            del counts[element]


def _stop_token_ids(seqs: list[Sequence]) -> Iterator[int]:
    return (token_id for seq in seqs for token_id in seq.group.params.stop_token_ids)

"""Tracks what the worker knows of sequences; each plan sends it the changes.

A sequence that the worker knows is named by its id and patched where its block table grew; any
other is sent in full. A sequence is forgotten there when it is preempted or released.
"""

from collections.abc import Set

from signalbox_contract.sections.forks import Fork
from signalbox_contract.step import TablePatch
from signalbox_scheduler.kv.block_manager import BlockSpaceManager
from signalbox_scheduler.planning.plan import StepPlan
from signalbox_scheduler.requests.sequence_group import Sequence


class WorkerState:
    """Puts sequences into plans in the terms of what the worker knows when it gets the plan."""

    def __init__(self, blocks: BlockSpaceManager) -> None:
        self._blocks = blocks
        self.forks: dict[Sequence, Sequence] = {}
        """New branches that are not sent yet, with their parents."""
        self.forget_seq_ids: list[int] = []
        """Sequences that the worker forgets with the next plan."""
        self.num_clears = 0
        """Clears of the caches; drafts come from no output of another request before the last."""

    def add(
        self, plan: StepPlan, seq: Sequence, num_new_tokens: int, *, num_drafts: int = 0
    ) -> None:
        """Adds a sequence that has the blocks of its new tokens, and drafts, to a plan."""
        num_draws = seq.group.num_draws if num_new_tokens == seq.num_remaining_tokens else 0
        if not seq.is_on_worker:
            plan.new.append(len(plan.seqs))
            plan.num_clears = self.num_clears
        if num_drafts:
            plan.num_drafts[len(plan.seqs)] = num_drafts
        plan.seqs.append(seq)
        plan.seq_ids.append(seq.seq_id)
        plan.num_new_tokens.append(num_new_tokens)
        plan.total_tokens += num_new_tokens
        plan.num_samples.append(num_draws)
        plan.token_budget = max(0, plan.token_budget - num_new_tokens - num_drafts)
        first = seq.num_sent_blocks
        if seq.is_on_worker and len(seq.block_table) > first:
            plan.patches.append(TablePatch(seq.seq_id, first, tuple(seq.block_table[first:])))
        seq.is_on_worker = True
        seq.num_sent_blocks = len(seq.block_table)
        seq.book(num_new_tokens, draws=num_draws > 0, num_drafts=num_drafts)

    def append_slots(self, plan: StepPlan, seq: Sequence, num_new_tokens: int) -> None:
        """Takes the blocks of the next tokens, which `can_append_slots` has allowed."""
        self._split_off(plan, seq)
        replaced = self._blocks.append_slots(seq, num_new_tokens)
        if replaced and seq.is_on_worker and replaced.start < seq.num_sent_blocks:
            entries = seq.block_table[replaced.start : replaced.stop]
            plan.patches.append(TablePatch(seq.seq_id, replaced.start, entries))

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Lets the next plan split `child` off, if it holds the child; else it is sent in full."""
        if parent.is_on_worker:  # else the plan that splits it off may be the one that sends it
            self.forks[child] = parent
            child.num_sent_blocks = len(parent.block_table)

    def replace_last(self, seq: Sequence) -> None:
        """Lets the plan that holds the sequence next replace the token that the worker drew."""
        if seq.is_on_worker:
            self.forks[seq] = seq

    def _split_off(self, plan: StepPlan, seq: Sequence) -> None:
        """Tells the worker of a new branch or token, while the parent is where it was."""
        parent = self.forks.pop(seq, None)
        if parent is not None and parent.is_on_worker:
            fork = Fork(parent.seq_id, seq.seq_id, seq.branch, seq.output_token_ids[-1])
            plan.forks.append(fork)
            seq.is_on_worker = True

    def forget(self, seq: Sequence) -> None:
        """Lets the worker forget a sequence with the next plan; a no-op if it knows nothing."""
        self.forks.pop(seq, None)
        if seq.is_on_worker:
            self.forget_seq_ids.append(seq.seq_id)
            seq.is_on_worker = False
        seq.num_sent_blocks = 0

    def finish_plan(self, plan: StepPlan) -> None:
        """Completes a plan that is to be sent, if there are `forks` or `forget_seq_ids`."""
        plan.forget, self.forget_seq_ids = self.forget_seq_ids, []
        # Parents have new tokens now, so a branch that was not split off is sent in full. Entries
        # of sequences whose last token is to be replaced stay.
        self.forks = {child: parent for child, parent in self.forks.items() if child is parent}

    def check(self, sequences: Set[Sequence]) -> None:
        """Asserts that nothing is to be split off but sequences that are on this worker."""
        assert self.forks.keys() <= sequences

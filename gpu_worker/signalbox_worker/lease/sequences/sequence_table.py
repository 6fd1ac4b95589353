"""The worker's memory of sequences: applies a step to it, builds the batch, takes the samples.

Every sequence has known tokens, of which the leading ones are computed (their K and V are in its
blocks). A step computes some of the others; when none is left a token is drawn and becomes known,
so the next step can compute it without hearing it from the scheduler. While a batch is under way
(`book`) its draws are known by their place alone, until it is taken: the next batch may name them.
Used on the execution thread alone.
"""

from collections.abc import Mapping
from contextlib import nullcontext
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.columns import float32s, int32s, int64s
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.model import ModelInfo, WorkerCapacity
from signalbox_contract.step import Step
from signalbox_contract.step_result import MaskTimes, StepResult
from signalbox_worker.batch.adapter_slots import AdapterSlots
from signalbox_worker.batch.arrays import Int32Array, Int64Array
from signalbox_worker.batch.batch import Batch, BatchOutput, Logprobs
from signalbox_worker.batch.sequence_failures import sequence_failure
from signalbox_worker.batch.state_runs import Settlement
from signalbox_worker.drafts.proposer import NO_PROPOSER, Proposer
from signalbox_worker.lease.sequences import batch_builder, pooled_prompts, prompt_logprobs
from signalbox_worker.lease.sequences.batch_builder import PlannedBatch
from signalbox_worker.lease.sequences.draft_runs import DraftRuns
from signalbox_worker.lease.sequences.drafting import Drafting
from signalbox_worker.lease.sequences.sequence_columns import SequenceRows
from signalbox_worker.lease.sequences.state_tables import (
    naming_states,
    no_states,
    settlement_of,
    states_of,
)
from signalbox_worker.lease.sequences.step_staging import StagedStep
from signalbox_worker.lease.sequences.step_validation import Limits
from signalbox_worker.sampling.grammars import Grammars


class BookedBatch(NamedTuple):
    """A running batch, and the places of the tokens that it draws."""

    planned: PlannedBatch
    first: Int64Array
    """Index of each sequence's first draw; the others are its tokens' places."""
    rows: Int64Array
    positions: Int64Array


class SequenceTable:
    """The sequences of one lease."""

    def __init__(
        self,
        *,
        model: ModelInfo,
        capacity: WorkerCapacity,
        num_gpu_blocks: int,
        grammars: Grammars,
        adapter_slots: Mapping[str, int] | None = None,
        proposer: Proposer = NO_PROPOSER,
    ) -> None:
        """`adapter_slots` changes with what is loaded; None is what the model has now."""
        slots = AdapterSlots(model.adapters).of if adapter_slots is None else adapter_slots
        self._limits = Limits(
            model=model,
            capacity=capacity,
            num_gpu_blocks=num_gpu_blocks,
            adapter_slots=slots,
        )
        # More sequences than one step holds may be known: those that wait for their turn.
        num_rows = 2 * capacity.max_num_seqs
        self._rows = SequenceRows(
            num_rows=num_rows,
            max_tokens=model.max_model_len + 1,  # the very last token is drawn, never computed
            max_blocks=self._limits.max_blocks,
            vocab_size=model.vocab_size,
            eos_token_ids=model.eos_token_ids,
            grammars=grammars,
            adapter_slots=slots,
            state_blocks=no_states(self._limits),
        )
        self._row_of: dict[int, int] = {}
        self._free = list(range(num_rows))
        self._failed: dict[int, str] = {}
        self._planned: PlannedBatch | None = None
        self.settlement: Settlement | None = None
        """Accepted drafts of the last batch, behind which the runner is to leave states."""
        self._drafting = Drafting(proposer, self._limits)

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, seq_id: int) -> bool:
        return seq_id in self._row_of

    def token_ids(self, seq_id: int) -> list[int]:
        row = self._row_of[seq_id]
        known: list[int] = self._rows.tokens[row, : self._rows.state["num_tokens"][row]].tolist()
        return known

    def check(self) -> None:
        """Asserts that every row is free or held by one sequence."""
        assert sorted([*self._free, *self._row_of.values()]) == list(range(len(self._rows)))
        assert self._failed.keys() <= self._row_of.keys()

    def apply(self, step: Step) -> Batch:
        """Forgets, forks, adds and patches, and returns the batch to compute.

        Raises InvalidArgument or FailedPrecondition, having changed nothing.
        """
        limits, rows = self._limits, self._rows
        if step.pooling is not None or limits.model.pooling is not None:
            pooled_prompts.check_section(step, limits.model.pooling)
        row_of, failed, num_blocks = self._row_of, self._failed, rows.state["num_blocks"]
        staged = None
        states, known = step.states, rows.state_blocks
        with naming_states(known, states, limits) if states else nullcontext():
            if step.changes_sequences:
                staged = self._stage(step)
                row_of, failed, num_blocks = staged.row_of, staged.failed, staged.num_blocks
            planned = batch_builder.plan(
                step,
                limits=limits,
                rows=rows,
                row_of=row_of,
                failed=failed,
                num_blocks=num_blocks,
            )
            asked = self._drafting.check(step, planned) if step.draft_limits else {}
            if rows.state_blocks is not None:
                planned.states = states_of(planned, rows, staged, limits=limits)
        if staged is not None:
            self._drafting.leave(step, self._row_of, rows)
            self._commit(staged)
        if asked:
            self._drafting.add(asked, planned, rows)
        batch = batch_builder.build(planned, rows, limits=limits)
        planned.prompt_rows = batch.prompt_rows
        self._planned = planned
        return batch

    def _stage(self, step: Step) -> StagedStep:
        num_rows, num_new = len(self._rows), len(step.forks) + len(step.new)
        if num_new > len(self._free):
            self._rows.grow(max(2 * num_rows, num_rows + num_new))
            self._free += range(num_rows, len(self._rows))
        staged = StagedStep(
            limits=self._limits,
            rows=self._rows,
            row_of=self._row_of.copy(),
            free=self._free.copy(),
            failed=self._failed.copy(),
            num_blocks=self._rows.state["num_blocks"],
        )
        staged.stage(step)
        return staged

    def _commit(self, staged: StagedStep) -> None:
        self._row_of, self._failed = staged.row_of, staged.failed
        self._free = staged.free + staged.released
        self._rows.release(staged.released)
        if staged.patches is not None:
            rows, columns, blocks = staged.patches
            self._rows.state["num_blocks"] = staged.num_blocks
            self._rows.block_tables[rows, columns] = blocks

    def must_know(self, step: Step) -> bool:
        """Returns whether `apply` needs unfinished tokens: of sequences that end, or are forked."""
        if step.forks:  # a fork copies its parent's tokens; one that is drawn later is not copied
            return True
        rows = self.rows_of(step)[: len(step.finished)]
        last = self._rows.tokens[rows, self._rows.state["num_tokens"][rows] - 1]
        return bool(((rows >= 0) & (last < 0)).any())

    def rows_of(self, step: Step) -> Int64Array:
        """Returns the rows of a step's finished and of its running sequences; -1 for unknown
        ones."""
        seq_ids = [*step.finished.tolist(), *step.running_seq_ids.tolist()]
        found = [self._row_of.get(seq_id, -1) for seq_id in seq_ids]
        return np.array(found, dtype=np.int64)

    def book(self) -> BookedBatch:
        """Counts the applied batch as computed, and its draws as tokens that are not known yet."""
        planned = self._end_batch()
        first, own = _first_draws(planned, planned.drawers)
        positions = self._rows.state["num_tokens"][own]
        self._rows.tokens[own, positions] = batch_builder.unknown_tokens(first)
        self._rows.state["num_tokens"][own] += 1
        return BookedBatch(planned, first, own, positions)

    def append_tokens(self, samples: BatchOutput, booked: BookedBatch | None = None) -> StepResult:
        """Appends the drawn tokens to their sequences and ends the batch, by default the applied.

        Returns the step's result, without its times. Booked batches are taken in order.
        """
        planned = self._end_batch() if booked is None else booked.planned
        prompt_rows, drafts, branches = planned.prompt_rows, planned.drafts, planned.branches
        keep, reasons = self._kept(planned, samples)
        token_ids, starts = samples.token_ids[keep], keep
        self.settlement = None
        if drafts is not None:
            self._append_runs(planned, drafts, keep, token_ids)
            samples.forward_ns += drafts.proposing_ns
            starts = keep & (drafts.ahead == 0)
        elif booked is None:
            self._append(planned, planned.drawers[keep], token_ids)
        else:  # no token is left unknown, not even one of a sequence that has failed
            known_ids = np.maximum(samples.token_ids[booked.first], 0)
            self._rows.tokens[booked.rows, booked.positions] = known_ids
        return StepResult(
            epoch=planned.epoch,
            step_id=planned.step_id,
            seq_ids=int64s(planned.seq_ids[planned.drawers[starts]]),
            branches=None if branches is None else int32s(branches[starts].astype(np.int32)),
            num_tokens=None if drafts is None else drafts.run_lengths(keep),
            token_ids=int32s(token_ids),
            logprobs=_by_row(samples.logprobs, keep),
            draw_logits=None if samples.logits is None else float32s(samples.logits[keep]),
            prompt_logprobs=[]
            if prompt_rows is None
            else prompt_logprobs.runs_of(
                planned.seq_ids, prompt_rows, samples.prompt_logprobs, failed=reasons
            ),
            failures=planned.failures,
            pooled=pooled_prompts.vectors_of(planned.seq_ids, samples.pooled, failed=reasons)
            if samples.pooled
            else {},
            masks=_mask_times(planned) if planned.mask_ns else None,
            drafts=None if drafts is None else drafts.report(planned.seq_ids, failed=reasons),
            draft_offers=self._drafting.offers(planned, self._rows),
        )

    def _kept(
        self, planned: PlannedBatch, samples: BatchOutput
    ) -> tuple[NDArray[np.bool_], dict[int, str]]:
        """Returns which draws are kept, and why sequences have failed, by index in the batch."""
        keep = np.ones(len(planned.drawers), dtype=np.bool_)
        failed = samples.failed | planned.refused
        if (drafts := planned.drafts) is not None:
            keep = drafts.counts(samples.token_ids, failed)
            if not samples.can_settle:
                keep &= drafts.ahead == 0
        reasons = dict[int, str]()
        for row, reason in failed.items():
            if keep[row]:
                reasons[int(planned.drawers[row])] = reason
        if planned.prompt_rows is not None:
            reasons |= prompt_logprobs.failures(planned.prompt_rows, samples.prompt_logprobs)
        reasons |= samples.failed_seqs
        if self._failed:  # a batch before may have been taken after this one was applied
            known = enumerate(planned.seq_ids.tolist())
            reasons |= {i: self._failed[seq_id] for i, seq_id in known if seq_id in self._failed}
        if reasons:
            for index, reason in reasons.items():
                self._fail(planned, index, reason)
            keep &= ~np.isin(planned.drawers, list(reasons))
        return keep, reasons

    def _end_batch(self) -> PlannedBatch:
        planned, self._planned = self._planned, None
        assert planned is not None, "no batch was planned"
        self._rows.state["num_computed"][planned.rows] += planned.num_new
        return planned

    def _fail(self, planned: PlannedBatch, index: int, reason: str) -> None:
        # It stays known, and fails again if computed again: the next step may be on its way here.
        seq_id = int(planned.seq_ids[index])
        self._failed[seq_id] = reason
        planned.failures[seq_id] = sequence_failure(reason)

    def _append(self, planned: PlannedBatch, drawers: Int64Array, token_ids: Int32Array) -> None:
        """Makes the first draw of each sequence its newest token."""
        first, own = _first_draws(planned, drawers)
        num_tokens = self._rows.state["num_tokens"]
        self._rows.tokens[own, num_tokens[own]] = token_ids[first]
        num_tokens[own] += 1

    def _append_runs(
        self,
        planned: PlannedBatch,
        drafts: DraftRuns,
        keep: NDArray[np.bool_],
        token_ids: Int32Array,
    ) -> None:
        """Appends all kept draws of each sequence's run. Accepted drafts count as computed."""
        drawers, ahead = planned.drawers[keep], drafts.ahead[keep]
        is_own = (np.diff(drawers, prepend=-1) != 0) | (ahead > 0)
        drawers, ahead = drawers[is_own], ahead[is_own]
        own, state = planned.rows[drawers], self._rows.state
        self._rows.tokens[own, state["num_tokens"][own] + ahead] = token_ids[is_own]
        lengths = np.bincount(drawers, minlength=len(planned.rows))
        state["num_tokens"][planned.rows] += lengths
        num_kept = np.maximum(lengths - 1, 0)
        state["num_computed"][planned.rows] -= drafts.num_drafts - num_kept
        self.settlement = settlement_of(planned, self._rows, num_kept, limits=self._limits)


def _mask_times(planned: PlannedBatch) -> MaskTimes:
    draws = np.fromiter(planned.mask_ns, dtype=np.int64)
    seq_ids = planned.seq_ids[planned.drawers[draws]]
    return MaskTimes(int64s(seq_ids), int64s(list(planned.mask_ns.values())))


def _first_draws(planned: PlannedBatch, drawers: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the index of each sequence's first draw, and the sequence's row."""
    first = np.arange(len(drawers))
    if planned.branches is not None:
        first = np.flatnonzero(np.diff(drawers, prepend=-1))
    return first, planned.rows[drawers[first]]


def _by_row(logprobs: list[Logprobs], keep: NDArray[np.bool_]) -> dict[int, TokenLogprobs]:
    """Returns the log probabilities of the rows to keep, by their row among these."""
    if not logprobs:
        return {}
    new_row = (np.cumsum(keep) - 1).tolist()
    return {new_row[found.row]: found.values for found in logprobs if keep[found.row]}

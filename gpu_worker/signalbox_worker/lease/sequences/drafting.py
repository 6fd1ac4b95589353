"""Adds drafts to the batch of a step: checks which sequences may have some, and asks the proposer.

A sequence for which nothing is proposed need not be allowed drafts again: it is looked at now and
then, and offered to the scheduler when there are some.

Drafts are written to a sequence's row behind its known tokens. All rules of a draw read the row up
to the draw's position, so they see the drafts before it. A draft that is not kept is overwritten or
never read.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from time import perf_counter_ns
from typing import TypeVar

import numpy as np

from signalbox_contract.cache_groups import keep_all, num_token_groups, state_group
from signalbox_contract.columns import Column, int64s
from signalbox_contract.errors import InvalidArgument
from signalbox_contract.sections.drafts import DraftLimits, DraftSource
from signalbox_contract.step import Step
from signalbox_worker.batch.arrays import Int64Array, offsets
from signalbox_worker.batch.largest_batch import most_draws
from signalbox_worker.batch.state_runs import with_drafts
from signalbox_worker.drafts.proposer import (
    NO_DRAFTS,
    NO_PROPOSER,
    DraftAsk,
    Drafts,
    EndedSequence,
    Proposer,
)
from signalbox_worker.lease.sequences.batch_builder import PlannedBatch
from signalbox_worker.lease.sequences.draft_runs import NO_DRAFT, DraftRuns
from signalbox_worker.lease.sequences.sequence_columns import SequenceRows
from signalbox_worker.lease.sequences.step_validation import Limits

logger = logging.getLogger(__name__)

T = TypeVar("T")

LOOK_TOKENS = 4
"""Tokens after which a sequence that had no drafts is looked at again."""
Asked = dict[int, int]
"""Most drafts of sequences, by their index in a batch."""


class Drafting:
    """The proposer of a lease, and the sequences for which it has nothing at present."""

    def __init__(self, proposer: Proposer, limits: Limits) -> None:
        self._proposer = proposer
        self._limits = limits
        self._idle: dict[int, int] = {}
        """Sequences that had no drafts when a step allowed some, with the step."""

    def leave(self, step: Step, row_of: Mapping[int, int], rows: SequenceRows) -> None:
        """Learns from the sequences that a step ends, and forgets them and the children of its
        forks, whose tokens change.

        Args: row_of: row of each sequence before the step.
        """
        for seq_id in step.finished.tolist():
            self._idle.pop(seq_id, None)
            if self._proposer is not NO_PROPOSER:
                self._leave(seq_id, row_of[seq_id], rows)
        for fork in step.forks:
            self._call(partial(self._proposer.forget, fork.child))

    def _leave(self, seq_id: int, row: int, rows: SequenceRows) -> None:
        ended = EndedSequence(
            seq_id=seq_id,
            token_ids=rows.tokens[row, : rows.state["num_tokens"][row]],
            num_prompt=int(rows.state["num_prompt"][row]),
            num_received=int(rows.state["num_received"][row]),
            owner=rows.owners[row],
        )
        self._call(partial(self._proposer.learn, ended))
        self._call(partial(self._proposer.forget, seq_id))

    def check(self, step: Step, planned: PlannedBatch) -> Asked:
        """Returns the drafts that a step allows. Raises InvalidArgument if it may not."""
        limits = step.draft_limits
        assert limits is not None, "else there is nothing to check"
        _check_limits(limits, most=self._limits.capacity.max_draft_tokens)
        running, state = set(step.running_seq_ids.tolist()), planned.state
        is_last = (planned.num_new == 1) & (state["num_computed"] + 1 == state["num_tokens"])
        draws_once = (state["num_tokens"] > state["num_prompt"]) | (state["num_samples"] == 1)
        index = {seq_id: i for i, seq_id in enumerate(planned.seq_ids.tolist())}
        asked = Asked()
        for seq_id, most in zip(limits.seq_ids.tolist(), limits.most.tolist(), strict=True):
            i = index.get(seq_id)
            if seq_id not in running or (i is not None and not (is_last & draws_once)[i]):
                allowed = "a sequence of `running` that computes its last token and draws once"
                raise InvalidArgument("draft_limits.seq_ids", seq_id, allowed)
            if i is not None:  # it has not failed
                asked[i] = most
        return asked

    def add(self, asked: Asked, planned: PlannedBatch, rows: SequenceRows) -> None:
        """Adds the drafts that are proposed, as far as there is room for them."""
        num_drafts = np.zeros(len(planned.seq_ids), dtype=np.int64)
        sources: dict[int, DraftSource] = {}
        left = self._room_in_step(planned)
        asks: dict[int, DraftAsk] = {}
        for i, most in asked.items():
            row = int(planned.rows[i])
            most = min(most, left, _room(row, rows, self._limits))
            if most > 0:
                asks[i] = _ask(int(planned.seq_ids[i]), row, rows, most=most)
        began_ns = perf_counter_ns()
        proposed = self._propose([*asks.values()])
        proposing_ns = perf_counter_ns() - began_ns
        for i, found in zip(asks, proposed, strict=True):
            token_ids = found.token_ids[:left]
            if count := _write(token_ids, int(planned.rows[i]), rows):
                num_drafts[i], sources[i] = count, found.source
                left -= count
        for i, seq_id in zip(asked, planned.seq_ids[[*asked]].tolist(), strict=True):
            self._idle[seq_id] = planned.step_id
            if i in sources:
                del self._idle[seq_id]
        if sources:
            drafts = _extend(planned, rows, num_drafts, sources)
            drafts.proposing_ns = proposing_ns

    def offers(self, planned: PlannedBatch, rows: SequenceRows) -> Column | None:
        """Returns the sequences of a computed batch that have drafts, though the last step that
        allowed them some found none. Each is named once."""
        if not self._idle:
            return None
        asks, lengths = dict[int, DraftAsk](), rows.state["num_tokens"][planned.rows].tolist()
        for i, seq_id in enumerate(planned.seq_ids.tolist()):
            is_asked = self._idle.get(seq_id, planned.step_id) == planned.step_id
            is_due = (lengths[i] + seq_id) % LOOK_TOKENS == 0
            is_at_end = lengths[i] >= self._limits.model.max_model_len
            if is_due and not (is_asked or is_at_end or seq_id in planned.failures):
                row = int(planned.rows[i])
                asks[row] = _ask(seq_id, row, rows, most=1)
        if not asks:
            return None
        proposed = zip(asks.items(), self._propose([*asks.values()]), strict=True)
        found = [ask.seq_id for (row, ask), one in proposed if _write(one.token_ids, row, rows)]
        for seq_id in found:
            del self._idle[seq_id]
        return int64s(found) if found else None

    def _room_in_step(self, planned: PlannedBatch) -> int:
        limits, capacity = self._limits, self._limits.capacity
        tokens = limits.most_tokens(len(planned.seq_ids)) - int(planned.num_new.sum())
        draws = most_draws(
            max_num_seqs=capacity.max_num_seqs, max_draft_tokens=capacity.max_draft_tokens
        )
        return min(tokens, draws - len(planned.drawers))

    def _propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        return self._call(partial(_proposed, self._proposer, asks)) or [NO_DRAFTS] * len(asks)

    def _call(self, call: Callable[[], T]) -> T | None:
        """Calls the proposer, which may be a package's: requests do not need drafts."""
        try:
            return call()
        except Exception:
            logger.exception("a proposer has failed; this lease computes no more drafts")
            self._proposer = NO_PROPOSER
            return None


def _ask(seq_id: int, row: int, rows: SequenceRows, *, most: int) -> DraftAsk:
    return DraftAsk(
        seq_id=seq_id,
        token_ids=rows.tokens[row, : rows.state["num_tokens"][row]],
        num_prompt=int(rows.state["num_prompt"][row]),
        most=most,
        prediction=rows.predictions[row],
        grammar=rows.grammars[row],
        owner=rows.owners[row],
    )


def _proposed(proposer: Proposer, asks: Sequence[DraftAsk]) -> list[Drafts]:
    pairs = zip(asks, proposer.propose(asks), strict=True)
    return [
        Drafts([*map(int, found.token_ids[: ask.most])], DraftSource(found.source))
        for ask, found in pairs
    ]


def _check_limits(limits: DraftLimits, *, most: int) -> None:
    seq_ids, field = limits.seq_ids.tolist(), "draft_limits"
    if not most:
        allowed = "none, since this worker computes no drafts"
        raise InvalidArgument(field, f"limits of {len(seq_ids)} sequences", allowed)
    if len(set(seq_ids)) != len(seq_ids):
        raise InvalidArgument(f"{field}.seq_ids", "a repeated sequence", "distinct sequences")
    highest = max(limits.most.tolist(), default=1)
    if highest > most:
        raise InvalidArgument(f"{field}.most", highest, f"at most {most}")


def _room(row: int, rows: SequenceRows, limits: Limits) -> int:
    """Returns how many tokens behind the known ones a sequence has blocks for. With a state they
    end with the row of the last known one, since a run leaves no snapshot within itself."""
    groups, size = limits.capacity.groups, limits.capacity.block_size
    state = rows.state[row]
    num_tokens, num_blocks = int(state["num_tokens"]), int(state["num_blocks"])
    num_rows, first = num_blocks // len(groups), num_tokens // size
    if not keep_all(groups):
        table = rows.block_tables[row, :num_blocks].reshape(num_rows, len(groups))
        gaps = (table[first:, : num_token_groups(groups)] < 0).any(axis=1)
        num_rows = min(num_rows, first + int(np.argmax(gaps))) if gaps.any() else num_rows
    if state_group(groups) is not None:
        num_rows = min(num_rows, (num_tokens - 1) // size + 1)
    return min(num_rows * size, limits.model.max_model_len) - num_tokens


def _write(token_ids: Sequence[int], row: int, rows: SequenceRows) -> int:
    """Writes drafts behind the known tokens; returns how many of them the vocabulary and the
    grammar admit."""
    start = int(rows.state["num_tokens"][row])
    drafts = list(takewhile(lambda token_id: 0 <= token_id < rows.vocab_size, token_ids))
    rows.tokens[row, start : start + len(drafts)] = drafts
    grammar = rows.grammars[row]
    if grammar is None:
        return len(drafts)
    output = rows.output(row, num_drafts=len(drafts))
    return grammar.num_admitted(output, num_drafts=len(drafts))


def _extend(
    planned: PlannedBatch,
    rows: SequenceRows,
    num_drafts: Int64Array,
    sources: dict[int, DraftSource],
) -> DraftRuns:
    """Adds the drafts to the rows of their sequences, and a draw behind each."""
    num_draws = 1 + num_drafts[planned.drawers]
    planned.num_new = planned.num_new + num_drafts
    if planned.states is not None:
        planned.states = with_drafts(planned.states, num_drafts)
    planned.drawers = np.repeat(planned.drawers, num_draws)
    if planned.branches is not None:
        planned.branches = np.repeat(planned.branches, num_draws)
    drawers, ahead = planned.drawers, offsets(num_draws)
    positions = planned.state["num_tokens"][drawers] + ahead
    is_followed = ahead < num_drafts[drawers]
    behind = np.where(is_followed, rows.tokens[planned.rows[drawers], positions], NO_DRAFT)
    drafts = planned.drafts = DraftRuns(
        num_drafts=num_drafts, sources=sources, ahead=ahead, behind=behind.astype(np.int32)
    )
    return drafts

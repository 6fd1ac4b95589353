"""One step as the scheduler plans it.

A plan is data. `StepPlan.to_step` closes it into the `Step` that the worker executes, and the
scheduler keeps the plan until the result comes.
"""

from collections.abc import Sequence as Blocks
from dataclasses import dataclass, field, replace

from signalbox_contract.columns import Column, int32s, int64s, pack_int32
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.sections.block_moves import NO_MOVES, BlockMoves
from signalbox_contract.sections.drafts import DraftLimits
from signalbox_contract.sections.forks import Fork
from signalbox_contract.sections.pooling import Pooling
from signalbox_contract.sections.store_moves import StoreMoves
from signalbox_contract.step import NewSequence, Step, TablePatch
from signalbox_scheduler.kv.prefix_cache import owner_of
from signalbox_scheduler.requests.open_spans import StepTrace
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup

_NO_COUNTS = NO_MOVES.counts
_NO_IDS = int64s([])
_ONE = pack_int32([1])
MAX_PREDICTION_TOKENS = 8 << 20
"""Most tokens of all predictions in one step: they take half of a worker's largest message."""


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step; `seqs`, `seq_ids`, `num_new_tokens` and `num_samples` have the same length."""

    step_id: int
    token_budget: int
    """Tokens that may still be added."""
    num_before: int = 0
    """Steps in flight when it was planned."""
    planned_at: float = 0.0
    """Seconds of the scheduler's clock."""
    seqs: list[Sequence] = field(default_factory=list)
    seq_ids: list[int] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    total_tokens: int = 0
    """Sum of `num_new_tokens`."""
    num_samples: list[int] = field(default_factory=list)
    """Tokens that each sequence draws: 0 in the middle of a prefill, n at the end of a prompt."""
    num_drafts: dict[int, int] = field(default_factory=dict)
    """Most drafts of each sequence that may compute some beside its token, by index in `seqs`."""
    reached: list[Sequence] = field(default_factory=list)
    """Sequences of the decode batch that fill a block, or compute the last that they ever do."""
    new: list[int] = field(default_factory=list)
    """Indices of the sequences that are sent in full, ascending; the worker knows the others."""
    num_clears: int = 0
    """Clears of the caches before it, if it has new sequences; see `owner_of`."""
    decode_ids: Column = _NO_IDS
    """Ids of the first sequences, those of the decode batch, which many steps have in common."""
    patches: list[TablePatch] = field(default_factory=list)
    forks: list[Fork] = field(default_factory=list)
    forget: list[int] = field(default_factory=list)
    block_moves: BlockMoves = NO_MOVES
    """Set when the plan is filled; see `SchedulerState.finish_copies`."""
    store_moves: StoreMoves | None = None
    """Set when the plan is filled; see connector.py."""
    states: Blocks[Blocks[int]] = ()
    """Blocks of states that a table names for the first time; see step.py."""
    preempted: list[SequenceGroup] = field(default_factory=list)
    deferred_victims: list[SequenceGroup] = field(default_factory=list)
    """Groups that sit this step out because they are preempted as soon as they are answered."""
    is_short_of_blocks: bool = False
    """True if a running sequence lacks a block; no waiting group is admitted then."""
    has_incoming: bool = False
    """True if groups of other workers are ready to run here; see connector.py."""
    is_alone: bool = False
    """True if all its sequences are of one request, a suspect; see suspect_turns.py."""
    is_audit: bool = False
    """True if it computes an earlier answer again, and nothing else; see step_audits.py."""
    adapters: set[str] | None = None
    """SHA-256 of the adapters that may be in the step; None is all. See adapter_turns.py."""
    dear: dict[SequenceGroup, float | None] = field(default_factory=dict)
    """Groups whose masks are dear, with the nanoseconds that those of a group with a turn are
    expected to take; the others, of None, sit the step out. See mask_turns.py."""
    trace: StepTrace | None = None
    """Set if a sampled request asks for it; see step_spans.py."""

    def takes(self, group: SequenceGroup) -> bool:
        """Returns whether the step may hold a group that runs.

        Suspects have steps of their own, adapters and dear masks may take turns, and what is paused
        takes none.
        """
        if group.is_paused or (self.dear and self.dear.get(group, 0.0) is None):
            return False
        adapter = group.request.adapter
        sits_out = adapter and self.adapters is not None and adapter not in self.adapters
        return not sits_out and self.is_alone is (group.suspicion is not None)

    def add_decodes(self, seqs: list[Sequence], ids: Column, *, reached: list[Sequence]) -> None:
        """Adds one token of each of some sequences that the worker knows to an empty plan."""
        count = len(seqs)
        self.decode_ids, self.reached = ids, reached
        self.seqs += seqs
        self.seq_ids += ids.tolist()
        self.num_new_tokens += [1] * count
        self.num_samples += [1] * count
        self.total_tokens += count
        self.token_budget -= count

    @property
    def has_work(self) -> bool:
        """True if the worker has something to do, be it copies alone."""
        return bool(self.seqs) or self.has_sections

    @property
    def has_sections(self) -> bool:
        """True if the step has work beside its core; see `section_counts`."""
        return self.block_moves is not NO_MOVES or self.store_moves is not None

    @property
    def section_counts(self) -> dict[str, int]:
        """Amounts of work of the step's sections, under names that each section chooses."""
        counts = _NO_COUNTS if self.block_moves is NO_MOVES else self.block_moves.counts
        return counts if self.store_moves is None else counts | self.store_moves.counts

    @property
    def num_decodes(self) -> int:
        """Sequences that compute one token, as prompts that are pooled rarely do."""
        pools = bool(self.seqs) and self.seqs[0].group.pools  # all do, or none
        return 0 if pools else self.num_new_tokens.count(1)

    def to_step(self, *, epoch: int) -> Step:
        """Returns what the worker executes, before anything else happens to the sequences.

        The step shares no list with the plan or its sequences.
        """
        seq_ids, num_new_tokens = self._running()
        traceparent, tracestate = self.trace.trace_context if self.trace else ("", "")
        return Step(
            epoch=epoch,
            step_id=self.step_id,
            finished=int64s(self.forget.copy()),
            new=self._new_sequences(epoch) if self.new else (),
            running_seq_ids=seq_ids,
            running_num_new_tokens=num_new_tokens,
            patches=tuple(self.patches),
            traceparent=traceparent,
            tracestate=tracestate,
            forks=tuple(self.forks),
            block_moves=self.block_moves,
            pooling=self._pooling() if self.new else None,
            store_moves=self.store_moves,
            states=self.states,
            draft_limits=self._draft_limits() if self.num_drafts else None,
        )

    def _running(self) -> tuple[Column, Column]:
        """Returns the sequences that the worker knows, and how many tokens each computes."""
        count = len(self.seqs)
        if len(self.decode_ids) == count:
            return self.decode_ids, int32s(_ONE * count)
        seq_ids, num_new_tokens = self.seq_ids.copy(), self.num_new_tokens.copy()
        for i in reversed(self.new):
            del seq_ids[i], num_new_tokens[i]
        return int64s(seq_ids), int32s(num_new_tokens)

    def _draft_limits(self) -> DraftLimits:
        seq_ids = [self.seq_ids[i] for i in self.num_drafts]
        return DraftLimits(int64s(seq_ids), int32s(list(self.num_drafts.values())))

    def _pooling(self) -> Pooling | None:
        """Returns how the new sequences are pooled; None on a worker that generates."""
        new = (self.seqs[i] for i in self.new)
        pooling = {seq.seq_id: how for seq in new if (how := seq.group.request.pooling)}
        return pooling or None

    def _new_sequences(self, epoch: int) -> tuple[NewSequence, ...]:
        params: dict[SequenceGroup, SamplingParams] = {}
        predictions = self._predictions()
        found = []
        for i in self.new:
            seq = self.seqs[i]
            group = seq.group
            if group not in params:
                params[group] = _group_params(group)
            shares_drafts = group.max_drafts and not group.is_private
            found.append(
                NewSequence(
                    seq_id=seq.seq_id,
                    branch=seq.branch,
                    token_ids=seq.token_ids,
                    num_prompt_tokens=group.num_prompt_tokens,
                    num_computed_tokens=seq.num_computed_tokens,
                    num_new_tokens=self.num_new_tokens[i],
                    block_table=seq.block_table.copy(),
                    num_samples=group.num_draws,
                    params=params[group],
                    request_id=group.request_id,
                    adapter=group.request.adapter,
                    prediction=predictions.get(group, ()),
                    returns_logits=group.logits is not None,
                    owner=owner_of(group.request, epoch=epoch, num_clears=self.num_clears)
                    if shares_drafts
                    else b"",
                )
            )
        return tuple(found)

    def _predictions(self) -> dict[SequenceGroup, tuple[int, ...]]:
        """Returns those of new groups, without the ones for which a message has no room: a worker
        that refused it would lose all that runs there."""
        found, left = dict[SequenceGroup, tuple[int, ...]](), MAX_PREDICTION_TOKENS
        for group in dict.fromkeys(self.seqs[i].group for i in self.new):
            prediction = group.request.prediction
            if group.max_drafts and len(prediction) <= left:
                found[group], left = prediction, left - len(prediction)
        return found


def _group_params(group: SequenceGroup) -> SamplingParams:
    """Returns the parameters, without log probabilities of the prompt that the router has."""
    if group.wants_prompt_logprobs or group.params.num_prompt_logprobs is None:
        return group.params
    return replace(group.params, num_prompt_logprobs=None)

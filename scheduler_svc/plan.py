"""What a step does, as the scheduler plans it, and what the worker answers.

A plan is data: the codec makes an ExecuteModelRequest of it, and the scheduler itself keeps it
until the answer comes.
"""

from dataclasses import dataclass, field
from typing import NamedTuple

from scheduler_svc.block_allocator import BlockCopy
from scheduler_svc.errors import RequestFailure
from scheduler_svc.sequence import FinishReason, Sequence, SequenceGroup
from scheduler_svc.spans import StepTrace


class TablePatch(NamedTuple):
    """Blocks that the worker writes at `first_index` of a sequence's block table."""

    seq_id: int
    first_index: int
    blocks: list[int]


class ForkPlan(NamedTuple):
    """The worker splits `child` off `parent`, going on with `token_id`."""

    parent_id: int
    child_id: int
    branch: int
    token_id: int


@dataclass(slots=True, kw_only=True)
class StepPlan:
    """One step. `seqs`, `num_new_tokens` and `num_samples` are columns of the same length."""

    step_id: int
    token_budget: int
    """Tokens that may still be added."""
    planned_at: float = 0.0
    """Seconds of the scheduler's clock."""
    seqs: list[Sequence] = field(default_factory=list)
    num_new_tokens: list[int] = field(default_factory=list)
    num_samples: list[int] = field(default_factory=list)
    """Tokens that each sequence draws: 0 in the middle of a prefill, n at the end of a prompt."""
    new: list[int] = field(default_factory=list)
    """Indices of the sequences that are sent in full."""
    running: list[int] = field(default_factory=list)
    """Indices of the sequences that the worker knows."""
    patches: list[TablePatch] = field(default_factory=list)
    forks: list[ForkPlan] = field(default_factory=list)
    forget: list[int] = field(default_factory=list)
    swap_out: list[BlockCopy] = field(default_factory=list)
    swap_in: list[BlockCopy] = field(default_factory=list)
    copy: list[BlockCopy] = field(default_factory=list)
    preempted: list[SequenceGroup] = field(default_factory=list)
    yielding: list[SequenceGroup] = field(default_factory=list)
    """Groups that sit this step out because they are preempted as soon as they are answered."""
    is_short_of_blocks: bool = False
    """Whether somebody who runs waits for blocks, so that nobody else may come in."""
    trace: StepTrace | None = None
    """Set if a sampled request asks for it; see step_tracing.py."""

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing for the worker to do."""
        return not (self.seqs or self.swap_out or self.swap_in)

    def add_decodes(self, seqs: list[Sequence]) -> None:
        """Adds one token of each of some sequences that the worker knows."""
        first, count = len(self.seqs), len(seqs)
        self.running += range(first, first + count)
        self.seqs += seqs
        self.num_new_tokens += [1] * count
        self.num_samples += [1] * count
        self.token_budget -= count

    @property
    def total_tokens(self) -> int:
        return sum(self.num_new_tokens)


class TokenLogprobs(NamedTuple):
    """Log probabilities of one drawn token, before temperature and filters."""

    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]


class PromptLogprobs(NamedTuple):
    """Log probabilities of a run of one sequence's prompt."""

    seq_id: int
    first_position: int
    logprobs: list[TokenLogprobs]


class StepTimings(NamedTuple):
    """Where the worker's time went, in nanoseconds."""

    wait_ns: int = 0
    swap_ns: int = 0
    forward_ns: int = 0
    sample_ns: int = 0


NO_TIMINGS = StepTimings()


@dataclass(slots=True, kw_only=True)
class StepAnswer:
    """One ExecuteModelResponse, decoded. Row i drew token_ids[i] for seq_ids[i]."""

    step_id: int
    seq_ids: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)
    """By row."""
    prompt_logprobs: list[PromptLogprobs] = field(default_factory=list)
    failures: dict[int, RequestFailure] = field(default_factory=dict)
    """By sequence id."""
    timings: StepTimings = NO_TIMINGS
    max_num_batched_tokens: int | None = None
    """Of the steps to come, where the worker's memory suffices for less than it announced."""

    def is_one_for_each(self, plan: StepPlan) -> bool:
        """Says whether row i is the one draw of the plan's sequence i, as in a step of decodes."""
        if self.failures or len(self.seq_ids) != len(plan.seqs):
            return False
        return self.seq_ids == [seq.seq_id for seq in plan.seqs]

    def find_fault(self, *, vocab_size: int) -> str | None:
        """Says in one line what no worker of such a vocabulary answers; None if all is well."""
        if len(self.seq_ids) != len(self.token_ids):
            return f"{len(self.seq_ids)} sequences with {len(self.token_ids)} tokens"
        reported = [max(entry.top_token_ids, default=0) for entry in self.logprobs.values()]
        lowest = min(self.token_ids, default=0)
        highest = max(max(self.token_ids, default=0), max(reported, default=0))
        if lowest < 0 or highest >= vocab_size:
            return f"token {lowest if lowest < 0 else highest} of a vocabulary of {vocab_size}"
        return None

    def rows(self) -> dict[int, list[int]]:
        """Returns the rows of each sequence, in order of branch."""
        rows: dict[int, list[int]] = {}
        for row, seq_id in enumerate(self.seq_ids):
            rows.setdefault(seq_id, []).append(row)
        return rows


NewToken = tuple[Sequence, int, TokenLogprobs | None]
"""A token that was accepted: whose, which, and its log probabilities if they were asked for."""


@dataclass(slots=True)
class StepOutcome:
    """What an answer means for requests."""

    tokens: list[NewToken] = field(default_factory=list)
    prompt_logprobs: list[tuple[SequenceGroup, int, list[TokenLogprobs]]] = field(
        default_factory=list
    )
    """Whose, the position of the first token, and one for each position from there on."""
    finished: list[Sequence] = field(default_factory=list)
    """Sequences that have just ended; each has its reason."""
    ended: list[SequenceGroup] = field(default_factory=list)
    """Requests whose last sequence has just ended."""


def stop_reason(
    seq: Sequence, token_id: int, *, eos_token_ids: frozenset[int]
) -> FinishReason | None:
    """Says whether a token that was just drawn ends its sequence."""
    params = seq.group.params
    if token_id not in params.stop_token_ids or len(seq.output_token_ids) <= params.min_tokens:
        return None
    return FinishReason.STOP if token_id in eos_token_ids else FinishReason.STOP_TOKEN

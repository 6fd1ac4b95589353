"""Sequences and the groups that share a prompt: what the scheduler knows of a request.

A sequence is its tokens and two counts: how many of them are computed, and how many are being
computed by steps that are not answered yet. Prefill, a chunk of it and decode are all "compute
some of the tokens that are left" (Sarathi-Serve, Agrawal et al., OSDI 2024). Everything that is
needed to rebuild a sequence on another worker is here; a worker holds only its KV.
"""

import math
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import NamedTuple

from rpc.sampling_params import SamplingParams
from scheduler_svc.beam import BeamSearch, BeamSearchParams, Draw
from scheduler_svc.errors import RequestFailure
from scheduler_svc.spans import RequestTrace
from scheduler_svc.timeline import GroupTimes, Timeline


class SequenceStatus(Enum):
    """Which queue a sequence is in."""

    WAITING = auto()
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


class FinishReason(Enum):
    """Why a sequence ended; names as in scheduler.proto."""

    STOP = auto()
    LENGTH = auto()
    STOP_TOKEN = auto()
    STOP_STRING = auto()
    ERROR = auto()


class DeliveredSequence(NamedTuple):
    """What a router has had of a sequence, from a scheduler that is lost."""

    token_ids: list[int]
    finish_reason: FinishReason | None
    """None goes on."""


class Counters(NamedTuple):
    """How far a sequence is; see the attributes of the same names."""

    num_computed_tokens: int
    num_inflight_tokens: int
    num_inflight_samples: int


@dataclass(slots=True, eq=False, kw_only=True)
class Sequence:
    """One branch of a request."""

    seq_id: int
    branch: int
    group: "SequenceGroup" = field(repr=False)
    status: SequenceStatus = SequenceStatus.WAITING
    output_token_ids: list[int] = field(default_factory=list)
    num_computed_tokens: int = 0
    """Tokens whose K and V exist, by steps that are answered."""
    num_inflight_tokens: int = 0
    """Tokens computed by steps that are planned and not answered."""
    num_inflight_samples: int = 0
    """Of those steps, how many draw a token."""
    block_table: list[int] = field(default_factory=list)
    """Written by BlockSpaceManager alone; blocks of the CPU pool while SWAPPED."""
    block_hashes: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    """By block size, which differs between workers: names of its first whole blocks, as far as
    anybody asked; see prefix.py."""
    num_published_blocks: int = 0
    """Leading blocks that may be found by their hashes."""
    num_sent_blocks: int = 0
    """Leading entries of the block table that the worker has."""
    steady_row: int = -1
    """Row in the steady lane, which then keeps the counters; -1 outside. See steady.py."""
    is_on_worker: bool = False
    """Whether the worker knows the sequence, so that a step may name it by id."""
    draw: Draw | None = None
    """Of a beam: what it may go on with, until all beams of the group have reported theirs."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    failure: RequestFailure | None = None
    """What its worker says; its siblings may go on."""
    score: float | None = None
    """Of a hypothesis that a beam search returns."""

    @property
    def num_tokens(self) -> int:
        """Tokens known: the prompt and what was sampled."""
        return self.group.num_prompt_tokens + len(self.output_token_ids)

    @property
    def counters(self) -> Counters:
        """Not to be asked of a sequence in the steady lane."""
        return Counters(
            self.num_computed_tokens, self.num_inflight_tokens, self.num_inflight_samples
        )

    @property
    def num_planned_tokens(self) -> int:
        """Tokens computed once every planned step is answered."""
        return self.num_computed_tokens + self.num_inflight_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens left to plan; tokens to be drawn by steps in flight count as known."""
        return self.num_tokens + self.num_inflight_samples - self.num_planned_tokens

    @property
    def token_ids(self) -> list[int]:
        return self.group.prompt_token_ids + self.output_token_ids

    def tokens(self, start: int, end: int) -> list[int]:
        """Returns the tokens at [start, end), without putting all of them together."""
        num_prompt_tokens = self.group.num_prompt_tokens
        if end <= num_prompt_tokens:
            return self.group.prompt_token_ids[start:end]
        outputs = self.output_token_ids[max(0, start - num_prompt_tokens) : end - num_prompt_tokens]
        return self.group.prompt_token_ids[start:] + outputs

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def finish(self, reason: FinishReason) -> None:
        """Ends the sequence. Its blocks stay its own until no step that holds it is in flight."""
        self.status = SequenceStatus.FINISHED
        self.finish_reason = reason

    def forget_progress(self) -> None:
        """Drops everything that lives on a worker, so that the sequence can be recomputed."""
        self.num_computed_tokens = self.num_inflight_tokens = self.num_inflight_samples = 0
        self.num_sent_blocks = self.num_published_blocks = 0
        self.is_on_worker = False
        self.draw = None


@dataclass(slots=True, eq=False, kw_only=True)
class SequenceGroup:
    """A request: a prompt and its branches, which are scheduled and preempted as one."""

    request_id: str
    prompt_token_ids: list[int]
    params: SamplingParams
    max_tokens: int
    max_tokens_is_default: bool = False
    """True if the client set no max_tokens, so that it may be lowered when the group arrives."""
    num_sequences: int = 1
    """Sequences that the client gets."""
    beam_search: BeamSearchParams | None = None
    deadline: float | None = None
    tenant: str = ""
    """Who pays; requests of different tenants share no cached blocks."""
    priority: int = 0
    """Less comes first, where the policy goes by it."""
    cache_salt: str = ""
    """Requests of different salts share no cached blocks."""
    num_known_prompt_logprobs: int = 0
    """Positions of the prompt, from 1 on, whose log probabilities the router has been told."""
    flow: str = ""
    """Where the policy lets it queue; set with its rank."""
    rank: float = math.nan
    """Its place for life among those of its flow, and on a worker; NaN until the policy says."""
    num_passed_over: int = 0
    """How often somebody behind it came in first because of what a worker had cached."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were not computed because their blocks were found."""
    attempt: int = 0
    """How often a router has sent it before; see scheduler.proto."""
    nonce: int = 0
    """The same in every attempt."""
    delivered: list[DeliveredSequence] = field(default_factory=list)
    """What its router has had, by branch; `make_group` makes its sequences of it."""
    times: GroupTimes
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    traceparent: str = ""
    tracestate: str = ""
    trace: RequestTrace | None = None
    """Set as long as the request lives if it is sampled; see tracing.py."""
    sequences: list[Sequence] = field(default_factory=list)
    """In order of branch. Until the prompt is computed there is branch 0 alone. While a beam search
    goes on they are its live hypotheses, in its order."""
    search: BeamSearch | None = None
    """Set as long as the request lives if it asks for beam search; see beam_groups.py."""
    found: list[Sequence] = field(default_factory=list)
    """What a beam search returns; they hold no blocks, and are in `sequences` once it is done."""
    end: int = 0
    """Length in tokens at which a sequence has its last; set by the worker's scheduler."""
    is_steady: bool = False
    """Whether the group is in its scheduler's steady lane."""
    failure: RequestFailure | None = None
    """Set if the request ended without a result of its own making."""
    num_preemptions: int = 0
    num_lost_workers: int = 0
    """Workers that were lost while they worked on the group."""

    @property
    def has_started(self) -> bool:
        """Whether a worker has worked on the group, here or at a scheduler that is lost."""
        return self.attempt > 0 or self.times.first_scheduled is not None

    @property
    def num_prompt_tokens(self) -> int:
        return len(self.prompt_token_ids)

    @property
    def wants_prompt_logprobs(self) -> bool:
        """Whether the prompt has to be computed for log probabilities that are still missing."""
        is_asked = self.params.num_prompt_logprobs is not None
        return is_asked and self.num_known_prompt_logprobs < self.num_prompt_tokens - 1

    @property
    def unfinished(self) -> list[Sequence]:
        return [seq for seq in self.sequences if not seq.is_finished]

    @property
    def is_finished(self) -> bool:
        return all(seq.is_finished for seq in self.sequences)

    @property
    def is_inflight(self) -> bool:
        """Whether a planned step that holds a sequence of the group is not answered yet."""
        return any(seq.num_inflight_tokens for seq in self.sequences)

    @property
    def num_branches(self) -> int:
        """Sequences that run side by side once the prompt is computed."""
        return self.num_sequences if self.beam_search is None else self.beam_search.width

    @property
    def awaits_fork(self) -> bool:
        """Whether one sequence still stands for all branches."""
        return len(self.sequences) < self.num_branches

    @property
    def awaits_answers(self) -> bool:
        """Whether what comes after a draw is not known before the draw is answered."""
        return self.search is not None or self.awaits_fork

    @property
    def num_draws(self) -> int:
        """Tokens that a sequence draws when all its tokens are computed."""
        return self.num_sequences if self.search is None and self.awaits_fork else 1

    @property
    def num_reserved_sequences(self) -> int:
        """Places that the group takes in a step's sequence budget, branches to come included."""
        return self.num_branches if self.awaits_fork else len(self.unfinished)

    @property
    def num_completion_tokens(self) -> int:
        """Tokens that the client got, or is about to get."""
        told = self.sequences if self.search is None else self.found
        return sum(len(seq.output_token_ids) for seq in told)

    def set_status(self, status: SequenceStatus) -> None:
        for seq in self.unfinished:
            seq.status = status

"""A request as the scheduler knows it: a group of sequences, one for each of its branches.

Everything that is needed to rebuild the sequences on another worker is here; a worker holds only
their KV. A sequence is its tokens and two counts: how many of them are computed, and how many are
being computed by steps that are not answered yet. Prefill, a chunk of it and decode are all
"compute some of the tokens that are left" (Sarathi-Serve, Agrawal et al., OSDI 2024).
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from enum import Enum, auto
from typing import NamedTuple, Protocol

from signalbox_contract.model import Numerics
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import (
    NO_SPECULATION,
    FinishReason,
    RequestFailure,
    RequestUpdates,
    SpeculationUse,
)
from signalbox_rpc.metrics.sample import Sample, counter, gauge
from signalbox_scheduler.requests.beam_search import BeamSearch, Draw
from signalbox_scheduler.requests.draft_use import DraftRecord, draft_samples
from signalbox_scheduler.requests.drawn_logits import DrawnLogits
from signalbox_scheduler.requests.mask_use import MaskUse
from signalbox_scheduler.requests.open_spans import RequestTrace
from signalbox_scheduler.requests.sequence_ids import next_seq_id
from signalbox_scheduler.requests.suspicion import Suspicion
from signalbox_scheduler.requests.timeline import GroupTimes, Timeline


class SequenceStatus(Enum):
    """Queue that a sequence is in."""

    WAITING = auto()
    LOADING = auto()
    """Its prefix is looked for, or on its way from, a worker's store."""
    RUNNING = auto()
    SWAPPED = auto()
    FINISHED = auto()


class Counters(NamedTuple):
    """Progress of a sequence; see the attributes of the same names."""

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
    """Tokens computed by steps that are planned and not answered; all of their drafts count."""
    num_inflight_samples: int = 0
    """Tokens that those steps may draw: one each, and one for each draft."""
    num_inflight_drafts: int = 0
    """Drafts that those steps may compute."""
    block_table: list[int] = field(default_factory=list)
    """Rows of a block of each group of layers, for block_size tokens each. Written by
    BlockSpaceManager alone; blocks of the CPU pool while SWAPPED."""
    block_hashes: dict[int, list[bytes]] = field(default_factory=dict, repr=False)
    """Hashes of the first whole rows, as many as were needed; by block size, which differs between
    workers."""
    num_cached_blocks: int = 0
    """Leading rows whose blocks may be found by their hashes, unless their pool has them as
    private."""
    num_sent_blocks: int = 0
    """Leading entries of the block table that the worker has."""
    draft_record: DraftRecord | None = field(default=None, repr=False)
    """Set once the sequence may have drafts."""
    decode_index: int = -1
    """Index in the decode batch, which then keeps the counters; -1 outside."""
    is_on_worker: bool = False
    """True if the worker knows the sequence, so that a step may name it by id."""
    finish_reason: FinishReason | None = None
    stop_token_id: int | None = None
    failure: RequestFailure | None = None
    """Failure that the worker reported; the other branches may continue."""
    score: float | None = None
    """Score of the sequence if a search found it."""

    @property
    def num_tokens(self) -> int:
        """Tokens known: the prompt and what was sampled."""
        return self.group.num_prompt_tokens + len(self.output_token_ids)

    @property
    def counters(self) -> Counters:
        """The counters of a sequence that is not in the decode batch."""
        return Counters(
            self.num_computed_tokens, self.num_inflight_tokens, self.num_inflight_samples
        )

    @property
    def num_planned_tokens(self) -> int:
        """Tokens computed once every planned step is answered, if all its drafts are accepted."""
        return self.num_computed_tokens + self.num_inflight_tokens

    @property
    def num_remaining_tokens(self) -> int:
        """Tokens left to plan; tokens that steps in flight may draw count as known."""
        return self.num_tokens + self.num_inflight_samples - self.num_planned_tokens

    @property
    def token_ids(self) -> list[int]:
        return self.group.request.prompt_token_ids + self.output_token_ids

    def tokens(self, start: int, end: int) -> list[int]:
        """Returns the tokens at [start, end), without putting all of them together."""
        num_prompt_tokens = self.group.num_prompt_tokens
        if end <= num_prompt_tokens:
            return self.group.request.prompt_token_ids[start:end]
        outputs = self.output_token_ids[max(0, start - num_prompt_tokens) : end - num_prompt_tokens]
        return self.group.request.prompt_token_ids[start:] + outputs

    @property
    def is_finished(self) -> bool:
        return self.status is SequenceStatus.FINISHED

    def book(self, num_new_tokens: int, *, draws: bool, num_drafts: int = 0) -> None:
        """Records that a planned step computes tokens, and so many drafts at most."""
        self.num_inflight_tokens += num_new_tokens + num_drafts
        self.num_inflight_samples += draws + num_drafts
        self.num_inflight_drafts += num_drafts

    def apply_result(
        self, num_new_tokens: int, *, draws: bool, num_drafts: int = 0, num_accepted: int = 0
    ) -> None:
        """Counts what `book` has recorded as computed, of the drafts those that were accepted."""
        self.num_inflight_tokens -= num_new_tokens + num_drafts
        self.num_inflight_samples -= draws + num_drafts
        self.num_inflight_drafts -= num_drafts
        self.num_computed_tokens += num_new_tokens + num_accepted

    def append(self, token_ids: list[int]) -> None:
        """Adds drawn tokens to the output."""
        self.output_token_ids += token_ids

    def truncate(self, num_output_tokens: int) -> None:
        """Removes the output behind its first tokens."""
        del self.output_token_ids[num_output_tokens:]

    def finish(self, reason: FinishReason) -> None:
        """Ends the sequence. Its blocks stay its own until no step that holds it is in flight."""
        self.status = SequenceStatus.FINISHED
        self.finish_reason = reason

    def forget_progress(self) -> None:
        """Drops everything that lives on a worker, so that the sequence can be recomputed."""
        self.num_computed_tokens = self.num_inflight_tokens = self.num_inflight_samples = 0
        self.num_inflight_drafts = 0
        self.num_sent_blocks = self.num_cached_blocks = 0
        self.is_on_worker = False


class RouterSession(Protocol):
    """Destination of the updates for a router. `send` must not block and must not call back."""

    def send(self, updates: RequestUpdates) -> None: ...


@dataclass(slots=True, eq=False, kw_only=True)
class SequenceGroup:
    """The sequences of one request, which are scheduled and preempted as one."""

    request: Request
    reply_to: RouterSession
    """Session of the router that sent the request."""
    num_prompt_tokens: int
    num_branches: int
    """Sequences that run side by side once the prompt is computed."""
    params: SamplingParams
    """Parameters that the worker gets; those of the request, unless a search needs others."""
    max_tokens: int
    """Lowered on arrival if the client set none and no worker holds so many."""
    deadline: float | None = None
    """Seconds on the scheduler's clock; None if the request may take any time."""
    num_known_prompt_logprobs: int = 0
    """Positions of the prompt, from 1 on, whose log probabilities the router has been delivered."""
    flow: str = ""
    """Flow of the admission queue that the policy chose; set with the rank."""
    rank: float = math.nan
    """Fixed place in the flow and on a worker; NaN until the policy has chosen it."""
    num_passed_over: int = 0
    """Times that a group behind it was admitted first because a worker had cached its prefix."""
    asked_stores: tuple[int, ...] = ()
    """Numbers of the workers' stores in which its prefix was looked up, as one lookup is enough."""
    num_cached_tokens: int = 0
    """Tokens of the prompt that were not computed because their blocks were found."""
    num_cached_on_cpu: int = 0
    """Part of num_cached_tokens whose blocks were found in the CPU pool."""
    num_fetched_tokens: int = 0
    """Tokens of the prompt whose blocks a store, or another worker, has sent for the request."""
    num_cpu_cached_tokens: int = 0
    """Tokens, of the output as well, that were not computed because their blocks were found in swap
    space."""
    times: GroupTimes
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    trace: RequestTrace | None = None
    """Set as long as the request lives if it is sampled; see request_spans.py."""
    sequences: list[Sequence] = field(default_factory=list)
    """Sequences in order of branch. Until the prompt is computed there is branch 0 alone."""
    max_length: int = 0
    """Tokens of a sequence that has its last; set by the scheduler of the worker."""
    max_drafts: int = 0
    """Most drafts of a sequence in a step; set by the scheduler of the worker."""
    is_in_decode_batch: bool = False
    """True while the group is in its scheduler's decode batch."""
    is_paused: bool = False
    """True while it runs, and no step takes it, because it is about to go to another worker."""
    failure: RequestFailure | None = None
    """Set if the request ended without a result of its own making."""
    logits: DrawnLogits | None = None
    """Set if workers return the logit of each token that is drawn, for an audit."""
    is_private: bool = False
    """True if none of its blocks are found by others, and no drafts come from its output."""
    numerics: Numerics | None = None
    """Numerics of the worker that took the group last; None before, or if it did not say."""
    arithmetic: str = ""
    """Arithmetic of the workers that have taken the group; empty before that, and if they differ
    although it has output."""
    speculation: SpeculationUse = NO_SPECULATION
    masks: MaskUse | None = None
    """Set once a mask was dear, or the group sat a step out."""
    num_preemptions: int = 0
    num_migrations: int = 0
    """Times that it has gone from one worker to another with its blocks."""
    num_lost_workers: int = 0
    """Workers that were lost while one of their steps held the group."""
    suspicion: Suspicion | None = None
    """Set while the group computes alone because a worker was lost with it; see suspicion.py."""

    def begin(self, *, eos_token_ids: tuple[int, ...] = ()) -> None:
        """Gives a new group its first sequence, or those that its router knows.

        Args:
            eos_token_ids: the model's, which no hypothesis of a search has before min_tokens.
        """
        self.sequences += self._delivered() or [
            Sequence(seq_id=next_seq_id(), branch=0, group=self)
        ]

    def _delivered(self) -> list[Sequence]:
        """Returns the sequences of a request that goes on, as if their worker had been lost."""
        return [
            Sequence(
                seq_id=next_seq_id(),
                branch=branch,
                group=self,
                status=SequenceStatus.FINISHED if reason else SequenceStatus.WAITING,
                output_token_ids=list(token_ids),
                finish_reason=reason,
            )
            for branch, (token_ids, reason) in enumerate(self.request.delivered)
        ]

    @property
    def request_id(self) -> str:
        return self.request.request_id

    @property
    def number(self) -> int:
        """Id of a sequence that the group always has; names it where its id may not be."""
        return self.sequences[0].seq_id

    @property
    def payer(self) -> str:
        """Name that the group's work is charged to."""
        return self.request.payer or self.request.tenant

    @property
    def pools(self) -> bool:
        """True if the prompt is pooled, so that its only draw is a vector."""
        return self.request.pooling is not None

    @property
    def has_started(self) -> bool:
        """True if a worker has worked on the group, here or at a scheduler that was lost."""
        return self.request.attempt > 0 or self.times.first_scheduled is not None

    @property
    def wants_prompt_logprobs(self) -> bool:
        """True if the prompt must be computed for log probabilities that are still missing."""
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
        """True if a step in flight holds a sequence of the group."""
        return any(seq.num_inflight_tokens for seq in self.sequences)

    @property
    def awaits_fork(self) -> bool:
        """True while one sequence stands for all branches."""
        return len(self.sequences) < self.num_branches

    @property
    def awaits_answers(self) -> bool:
        """True if the tokens after a draw depend on the result of that draw."""
        return self.awaits_fork

    @property
    def num_draws(self) -> int:
        """Tokens that a sequence draws when all its tokens are computed."""
        if self.request.prewarm:
            return 0
        return self.num_branches if self.awaits_fork else 1

    @property
    def num_reserved_sequences(self) -> int:
        """Places that the group takes in a step's sequence budget, branches to come included."""
        return self.num_branches if self.awaits_fork else len(self.unfinished)

    @property
    def num_completion_tokens(self) -> int:
        """Tokens that the client got, or is about to get."""
        return sum(len(seq.output_token_ids) for seq in self.sequences)

    def samples(self) -> Iterator[Sample]:
        """Yields what parts have counted of this request alone."""
        if self.masks is not None:
            yield from self.masks.samples()
        if self.speculation.num_runs:
            yield from draft_samples(self.speculation)
        if self.request.model_wait_ns:
            yield gauge(
                "model_wait_ms",
                "Milliseconds that it waited before, until its model was loaded.",
                self.request.model_wait_ns / 1e6,
            )
        if self.num_migrations:
            yield counter(
                "num_migrations",
                "Times that it migrated to another worker with its blocks.",
                self.num_migrations,
            )

    def set_status(self, status: SequenceStatus) -> None:
        for seq in self.unfinished:
            seq.status = status

    def fail(self, failure: RequestFailure) -> None:
        """Records why the request ends without a result; the first failure stays."""
        self.failure = self.failure or failure

    def suspect(self, position: int) -> Suspicion:
        """Records that it may have been the cause of a loss by its tokens up to a position."""
        suspicion = self.suspicion = self.suspicion or Suspicion(position)
        suspicion.position = max(suspicion.position, position)
        return suspicion

    def pop_suspicion(self) -> Suspicion | None:
        suspicion, self.suspicion = self.suspicion, None
        return suspicion

    def forget_progress(self) -> None:
        """Removes what lives on a worker, so that the group can be recomputed."""
        for seq in self.sequences:
            seq.forget_progress()


@dataclass(slots=True, eq=False, kw_only=True)
class BeamGroup(SequenceGroup):
    """The sequences of a beam search, which are its live hypotheses, in its order."""

    search: BeamSearch = field(init=False)
    """Chooses the sequences together. Set by `begin`."""
    draws: dict[Sequence, Draw] = field(default_factory=dict)
    """Draws of the sequences that wait for those of the others."""
    results: list[Sequence] = field(default_factory=list)
    """The sequences that the client gets. They hold no blocks, and become the group's when the
    search is done."""

    def begin(self, *, eos_token_ids: tuple[int, ...] = ()) -> None:
        SequenceGroup.begin(self)
        assert self.request.beam_search is not None, "the request asks for no search"
        self.search = BeamSearch(
            self.request.beam_search,
            stop_token_ids=self.params.stop_token_ids,
            min_tokens=self.params.min_tokens,
            eos_token_ids=eos_token_ids,
        )
        self.params = replace(self.params, temperature=0.0, num_logprobs=self.search.num_candidates)
        self.results += [
            Sequence(seq_id=next_seq_id(), branch=index, group=self)
            for index in range(self.request.num_sequences)
        ]

    @property
    def number(self) -> int:
        return self.results[0].seq_id

    @property
    def awaits_answers(self) -> bool:
        return True

    @property
    def num_draws(self) -> int:
        return 1

    @property
    def num_completion_tokens(self) -> int:
        return sum(len(seq.output_token_ids) for seq in self.results)

    def forget_progress(self) -> None:
        SequenceGroup.forget_progress(self)
        self.draws.clear()


def new_group(request: Request, *, reply_to: RouterSession, now: float) -> SequenceGroup:
    """Returns the group of a request that arrives now; `begin` gives it its sequences."""
    timeout_ns, search = request.timeout_ns, request.beam_search
    return (SequenceGroup if search is None else BeamGroup)(
        request=request,
        reply_to=reply_to,
        num_prompt_tokens=len(request.prompt_token_ids),
        num_branches=request.num_sequences if search is None else search.width,
        params=request.params,
        max_tokens=request.max_tokens,
        deadline=None if timeout_ns is None else now + timeout_ns / 1e9,
        num_known_prompt_logprobs=request.num_delivered_prompt_logprobs,
        times=GroupTimes(arrival=now - request.age_ns / 1e9),
    )

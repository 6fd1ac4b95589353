"""A request as the scheduler knows it, and the sequences that it begins with.

Everything that is needed to rebuild its sequences on another worker is here and in `Sequence`; a
worker holds only their KV.
"""

import math
from dataclasses import dataclass, field, replace

from contract.request import BeamSearchParams, DeliveredSequence, Request
from contract.sampling_params import SamplingParams
from contract.updates import RequestFailure
from scheduler_svc.requests.beam_search import BeamSearch
from scheduler_svc.requests.open_spans import RequestTrace
from scheduler_svc.requests.sequence import Sequence, SequenceStatus
from scheduler_svc.requests.sequence_ids import next_seq_id
from scheduler_svc.requests.suspicion import Suspicion
from scheduler_svc.requests.timeline import GroupTimes, Timeline


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
    """Owner of the request. Requests of different tenants share no cached blocks."""
    payer: str = ""
    """Name that the group's work is charged to; the tenant if none is given."""
    priority: int = 0
    """Less comes first, where the policy goes by it."""
    cache_salt: str = ""
    """Requests of different salts share no cached blocks."""
    num_known_prompt_logprobs: int = 0
    """Positions of the prompt, from 1 on, whose log probabilities the router has been delivered."""
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
    delivered: tuple[DeliveredSequence, ...] = ()
    """What its router has had, by branch; `make_group` makes its sequences of it."""
    times: GroupTimes
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    traceparent: str = ""
    tracestate: str = ""
    trace: RequestTrace | None = None
    """Set as long as the request lives if it is sampled; see request_spans.py."""
    sequences: list[Sequence] = field(default_factory=list)
    """In order of branch. Until the prompt is computed there is branch 0 alone. While a beam search
    goes on they are its live hypotheses, in its order."""
    search: BeamSearch | None = None
    """Set as long as the request lives if it asks for beam search; see beam_branching.py."""
    beam_results: list[Sequence] = field(default_factory=list)
    """What a beam search returns; they hold no blocks, and are in `sequences` once it is done."""
    end: int = 0
    """Length in tokens at which a sequence has its last; set by the worker's scheduler."""
    is_steady: bool = False
    """Whether the group is in its scheduler's decode columns."""
    failure: RequestFailure | None = None
    """Set if the request ended without a result of its own making."""
    num_preemptions: int = 0
    num_lost_workers: int = 0
    """Workers that were lost while a step of theirs held the group."""
    suspicion: Suspicion | None = None
    """Set while the group computes alone because a worker was lost with it; see suspicion.py."""

    def __post_init__(self) -> None:
        self.payer = self.payer or self.tenant

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
        delivered = self.sequences if self.search is None else self.beam_results
        return sum(len(seq.output_token_ids) for seq in delivered)

    def set_status(self, status: SequenceStatus) -> None:
        for seq in self.unfinished:
            seq.status = status


def new_group(request: Request, *, now: float) -> SequenceGroup:
    """Returns the group of a request that arrives now; `make_group` gives it its sequences."""
    timeout_ns = request.timeout_ns
    return SequenceGroup(
        request_id=request.request_id,
        prompt_token_ids=request.prompt_token_ids,
        params=request.params,
        max_tokens=request.max_tokens,
        max_tokens_is_default=request.max_tokens_is_default,
        num_sequences=request.num_sequences,
        beam_search=request.beam_search,
        deadline=None if timeout_ns is None else now + timeout_ns / 1e9,
        tenant=request.tenant,
        payer=request.payer,
        priority=request.priority,
        cache_salt=request.cache_salt,
        num_known_prompt_logprobs=request.num_delivered_prompt_logprobs,
        attempt=request.attempt,
        nonce=request.nonce,
        delivered=request.delivered,
        times=GroupTimes(arrival=now - request.age_ns / 1e9),
        traceparent=request.traceparent,
        tracestate=request.tracestate,
    )


def make_group(group: SequenceGroup, *, eos_token_ids: tuple[int, ...] = ()) -> SequenceGroup:
    """Gives a new group its first sequence, or those that its router knows, and its search.

    Args:
        eos_token_ids: the model's, which no hypothesis has before min_tokens.
    """
    group.sequences += _delivered(group) or [Sequence(seq_id=next_seq_id(), branch=0, group=group)]
    if group.beam_search is not None:
        group.search = BeamSearch(
            group.beam_search,
            stop_token_ids=group.params.stop_token_ids,
            min_tokens=group.params.min_tokens,
            eos_token_ids=eos_token_ids,
        )
        group.params = replace(
            group.params, temperature=0.0, num_logprobs=group.search.num_candidates
        )
        group.beam_results = [
            Sequence(seq_id=next_seq_id(), branch=index, group=group)
            for index in range(group.num_sequences)
        ]
    return group


def _delivered(group: SequenceGroup) -> list[Sequence]:
    """Returns the sequences of a group that goes on, as if their worker had been lost."""
    return [
        Sequence(
            seq_id=next_seq_id(),
            branch=branch,
            group=group,
            status=SequenceStatus.FINISHED if reason else SequenceStatus.WAITING,
            output_token_ids=list(token_ids),
            finish_reason=reason,
        )
        for branch, (token_ids, reason) in enumerate(group.delivered)
    ]

"""A request as the scheduler knows it, and the sequences that it begins with.

Everything that is needed to rebuild its sequences on another worker is here and in `Sequence`; a
worker holds only their KV.
"""

import math
from dataclasses import dataclass, field, replace
from typing import Protocol

from signalbox_contract.model import Arithmetic
from signalbox_contract.request import Request
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.updates import RequestFailure, RequestUpdates
from signalbox_scheduler.requests.beam_search import BeamSearch
from signalbox_scheduler.requests.mask_use import MaskUse
from signalbox_scheduler.requests.open_spans import RequestTrace
from signalbox_scheduler.requests.sequence import Sequence, SequenceStatus
from signalbox_scheduler.requests.sequence_ids import next_seq_id
from signalbox_scheduler.requests.suspicion import Suspicion
from signalbox_scheduler.requests.timeline import GroupTimes, Timeline


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
    times: GroupTimes
    timeline: Timeline = field(default_factory=Timeline, repr=False)
    trace: RequestTrace | None = None
    """Set as long as the request lives if it is sampled; see request_spans.py."""
    sequences: list[Sequence] = field(default_factory=list)
    """Sequences in order of branch. Until the prompt is computed there is branch 0 alone. During a
    search they are its live hypotheses, in its order."""
    search: BeamSearch | None = None
    """Chooses the group's sequences together, if the request asks for that."""
    max_length: int = 0
    """Tokens of a sequence that has its last; set by the scheduler of the worker."""
    has_decode_rows: bool = False
    """True while the group is in its scheduler's decode columns."""
    is_paused: bool = False
    """True while it runs, and no step takes it, because it is about to go to another worker."""
    failure: RequestFailure | None = None
    """Set if the request ended without a result of its own making."""
    arithmetic: Arithmetic | None = None
    """Arithmetic of the worker that took the group last; None before, or if it did not say."""
    masks: MaskUse | None = None
    """Set once a mask was dear, or the group sat a step out."""
    num_preemptions: int = 0
    num_handovers: int = 0
    """Times that it has gone from one worker to another with its blocks."""
    num_lost_workers: int = 0
    """Workers that were lost while one of their steps held the group."""
    suspicion: Suspicion | None = None
    """Set while the group computes alone because a worker was lost with it; see suspicion.py."""

    @property
    def request_id(self) -> str:
        return self.request.request_id

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
        return self.search is not None or self.awaits_fork

    @property
    def num_draws(self) -> int:
        """Tokens that a sequence draws when all its tokens are computed."""
        return self.request.num_sequences if self.search is None and self.awaits_fork else 1

    @property
    def num_reserved_sequences(self) -> int:
        """Places that the group takes in a step's sequence budget, branches to come included."""
        return self.num_branches if self.awaits_fork else len(self.unfinished)

    @property
    def num_completion_tokens(self) -> int:
        """Tokens that the client got, or is about to get."""
        delivered = self.sequences if self.search is None else self.search.results
        return sum(len(seq.output_token_ids) for seq in delivered)

    def set_status(self, status: SequenceStatus) -> None:
        for seq in self.unfinished:
            seq.status = status

    def fail(self, failure: RequestFailure) -> None:
        """Records why the request ends without a result; the first failure stays."""
        self.failure = self.failure or failure

    def pop_suspicion(self) -> Suspicion | None:
        suspicion, self.suspicion = self.suspicion, None
        return suspicion

    def forget_progress(self) -> None:
        """Removes what lives on a worker, so that the group can be recomputed."""
        for seq in self.sequences:
            seq.forget_progress()
        if self.search is not None:
            self.search.draws.clear()


def new_group(request: Request, *, reply_to: RouterSession, now: float) -> SequenceGroup:
    """Returns the group of a request that arrives now; `make_group` gives it its sequences."""
    timeout_ns, search = request.timeout_ns, request.beam_search
    return SequenceGroup(
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


def make_group(group: SequenceGroup, *, eos_token_ids: tuple[int, ...] = ()) -> SequenceGroup:
    """Gives a new group its first sequence, or those that its router knows, and its search.

    Args:
        eos_token_ids: the model's, which no hypothesis has before min_tokens.
    """
    group.sequences += _delivered(group) or [Sequence(seq_id=next_seq_id(), branch=0, group=group)]
    if group.request.beam_search is not None:
        group.search = BeamSearch(
            group.request.beam_search,
            stop_token_ids=group.params.stop_token_ids,
            min_tokens=group.params.min_tokens,
            eos_token_ids=eos_token_ids,
        )
        group.params = replace(
            group.params, temperature=0.0, num_logprobs=group.search.num_candidates
        )
        group.search.results = [
            Sequence(seq_id=next_seq_id(), branch=index, group=group)
            for index in range(group.request.num_sequences)
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
        for branch, (token_ids, reason) in enumerate(group.request.delivered)
    ]

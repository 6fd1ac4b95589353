"""What the scheduler tells routers: one message a step for each router, before encoding."""

from dataclasses import dataclass, field

from scheduler_svc.errors import RequestFailure
from scheduler_svc.plan import TokenLogprobs
from scheduler_svc.sequence import FinishReason
from scheduler_svc.timeline import GroupTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedSequence:
    """A sequence that ended; see scheduler.proto."""

    handle: int
    index: int
    reason: FinishReason
    stop_token_id: int | None = None
    error_message: str = ""
    score: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """A request that ended; see scheduler.proto."""

    handle: int
    failure: RequestFailure | None
    num_prompt_tokens: int
    num_completion_tokens: int
    num_cached_tokens: int
    times: GroupTimes
    now: float


@dataclass(slots=True)
class RouterMessage:
    """New tokens as columns of the same length, and what ended."""

    handles: list[int] = field(default_factory=list)
    indices: list[int] = field(default_factory=list)
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[tuple[int, TokenLogprobs]] = field(default_factory=list)
    """(row in token_ids, values)."""
    prompt_logprobs: list[tuple[int, int, list[TokenLogprobs]]] = field(default_factory=list)
    """(handle, position of the first, one for each position from there on)."""
    finished: list[FinishedSequence] = field(default_factory=list)
    ended: list[EndedRequest] = field(default_factory=list)
    admitted: list[tuple[int, int]] = field(default_factory=list)
    """(handle, max_tokens) of requests that came in with fewer than they had."""

    def add_token(
        self, *, handle: int, index: int, token_id: int, logprobs: TokenLogprobs | None
    ) -> None:
        if logprobs is not None:
            self.logprobs.append((len(self.token_ids), logprobs))
        self.handles.append(handle)
        self.indices.append(index)
        self.token_ids.append(token_id)

"""Outputs of a generation, in vLLM's shape."""

from dataclasses import dataclass, field
from typing import NamedTuple

from signalbox_contract.updates import Usage
from signalbox_router.requests.request_output import Finish, FinishReason

StopReason = int | str | None

_STOP, _LENGTH, _ERROR, ABORT = "stop", "length", "error", "abort"


class Logprob(NamedTuple):
    """Log probability of one token at one position, before temperature and filters."""

    logprob: float
    rank: int | None
    """1 for the likeliest token; None for tokens of logprob_token_ids, whose rank is not
    computed."""
    decoded_token: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestMetrics:
    """Times of a request's events, in seconds of `time.monotonic()`; None before the event."""

    arrival_time: float
    first_scheduled_time: float | None = None
    first_token_time: float | None = None
    last_token_time: float | None = None
    finished_time: float | None = None
    preempted_s: float = 0.0
    """Time that the request spent preempted."""
    speculative_decoding: dict[str, float] | None = None
    """Counts of drafts under vLLM's names; None before the end, or if none was computed."""

    @property
    def time_in_queue(self) -> float | None:
        scheduled = self.first_scheduled_time
        return None if scheduled is None else scheduled - self.arrival_time


@dataclass(slots=True, kw_only=True)
class CompletionOutput:
    """One sequence of a request."""

    index: int
    text: str
    token_ids: list[int] = field(default_factory=list)
    cumulative_logprob: float | None = None
    """Sum of the log probabilities; None unless they were requested or order the sequences."""
    logprobs: list[dict[int, Logprob]] | None = None
    """Log probabilities at each token, by token id: of the sampled token and of the likeliest ones;
    for a beam only of its own tokens, at its end."""
    finish_reason: str | None = None
    """"stop", "length", "abort" or "error"; None while it goes on."""
    stop_reason: StopReason = None
    """The stop string or stop token that ended it; None for an end of the model's own."""
    score: float | None = None
    """Score by which sequences are ordered with best_of and beam search; None before it is
    known."""

    def finished(self) -> bool:
        return self.finish_reason is not None


@dataclass(slots=True, kw_only=True)
class RequestOutput:
    """A request and all that was generated for it so far."""

    request_id: str
    prompt: str | None
    """None if the prompt was given as tokens."""
    prompt_token_ids: list[int]
    outputs: list[CompletionOutput]
    prompt_logprobs: list[dict[int, Logprob] | None] | None = None
    """Log probabilities at each token of the prompt, None at the first; None unless requested."""
    finished: bool
    usage: Usage
    metrics: RequestMetrics
    error: str | None = None
    """Reason why sequences ended with "error"."""

    @property
    def num_cached_tokens(self) -> int:
        """Tokens of the prompt that the prefix cache had."""
        return self.usage.cached_tokens


def finish_reason(finish: Finish) -> tuple[str, StopReason]:
    """Returns finish_reason and stop_reason."""
    match finish.reason:
        case FinishReason.STOP:
            return _STOP, None
        case FinishReason.STOP_TOKEN | FinishReason.TOOL_CALLS:
            return _STOP, finish.stop_token_id
        case FinishReason.STOP_STRING:
            return _STOP, finish.stop
        case FinishReason.LENGTH:
            return _LENGTH, None
        case FinishReason.ERROR:
            return _ERROR, None

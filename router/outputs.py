"""What a generation gives, between the wire's two sides: deltas, finishes, usage, timings."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class FinishReason(enum.Enum):
    """Why a sequence ended; see inference.proto."""

    STOP = enum.auto()
    LENGTH = enum.auto()
    STOP_STRING = enum.auto()
    STOP_TOKEN = enum.auto()
    ERROR = enum.auto()
    TOOL_CALLS = enum.auto()


class Finish(NamedTuple):
    """How a sequence ended, and what matched."""

    reason: FinishReason
    stop: str | None = None
    stop_token_id: int | None = None
    error_message: str = ""
    score: float | None = None
    """What the request's sequences are ordered by, if they are."""


class TokenLogprobs(NamedTuple):
    """Log probabilities at one position; the alternatives are the most likely tokens."""

    logprob: float
    rank: int
    top_token_ids: list[int]
    top_logprobs: list[float]


@dataclass(slots=True, kw_only=True)
class ToolCallDelta:
    """What was added to one call; its id and name are in its first delta."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""


@dataclass(slots=True, kw_only=True)
class Delta:
    """What was added to one sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    reasoning: str = ""
    """Reasoning that this output adds, which precedes the text."""


class Usage(NamedTuple):
    """Tokens that a request took; completion tokens are those of all sequences."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int


class Timings(NamedTuple):
    """Where a request's time went, in nanoseconds."""

    queued_ns: int
    prefill_ns: int
    decode_ns: int
    preempted_ns: int


class End(NamedTuple):
    """A request has ended well."""

    usage: Usage
    timings: Timings
    time_to_first_token_ns: int | None = None
    """From arrival at the router to the first token's leaving it."""


def end_unmeasured(num_prompt_tokens: int) -> End:
    """Returns the end of a request whose scheduler was lost before it could tell the times."""
    return End(Usage(num_prompt_tokens, 0, 0), Timings(0, 0, 0, 0))


class Delivered(NamedTuple):
    """What has come of one sequence so far; `finish` is None if it goes on."""

    token_ids: list[int]
    finish: Finish | None


class Update(NamedTuple):
    """What one message to the client says."""

    deltas: list[Delta]
    end: End | None
    prompt_logprobs: Sequence[TokenLogprobs] = ()
    """One for each token of the prompt but the first, in the first update."""

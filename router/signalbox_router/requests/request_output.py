"""Output of a generation in plain types: deltas, finishes, usage, timings."""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from signalbox_contract import updates
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.updates import (
    NO_SPECULATION,
    FinishedSequence,
    SpeculationUse,
    Timings,
    Usage,
)


class FinishReason(enum.Enum):
    """Reason why a sequence ended; see inference.proto."""

    STOP = enum.auto()
    LENGTH = enum.auto()
    STOP_STRING = enum.auto()
    STOP_TOKEN = enum.auto()
    ERROR = enum.auto()
    TOOL_CALLS = enum.auto()


class Finish(NamedTuple):
    """The end of a sequence, and the stop that matched."""

    reason: FinishReason
    stop: str | None = None
    stop_token_id: int | None = None
    error_message: str = ""
    score: float | None = None
    """Score by which the request's sequences are ordered; None if they are not."""


def finish_of(finished: FinishedSequence) -> Finish:
    """Returns how a sequence ended, as its scheduler sees it."""
    return Finish(
        FinishReason[finished.reason.name],
        stop_token_id=finished.stop_token_id,
        error_message=finished.error_message,
        score=finished.score,
    )


def reason_of(finish: Finish | None) -> updates.FinishReason | None:
    """Returns why a sequence ended, as a scheduler knows it; None if it continues."""
    return None if finish is None else updates.FinishReason[finish.reason.name]


@dataclass(slots=True, kw_only=True)
class ToolCallDelta:
    """New text of one tool call; its id and name are in its first delta."""

    index: int
    id: str = ""
    name: str = ""
    arguments: str = ""
    offset: int = 0
    """Characters of the delta's text that precede it."""


@dataclass(slots=True, kw_only=True)
class Delta:
    """New output of one sequence."""

    index: int
    text: str = ""
    token_ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    finish: Finish | None = None
    tool_calls: list[ToolCallDelta] = field(default_factory=list)
    reasoning: str = ""
    """Reasoning of this delta, which precedes its text."""

    def parts(self) -> Iterator[str | ToolCallDelta]:
        """Yields the parts of the text, none of them empty, and the calls as the model wrote them,
        one after another."""
        start = 0
        for call in self.tool_calls:
            if call.offset > start:
                yield self.text[start : call.offset]
                start = call.offset
            yield call
        if start < len(self.text):
            yield self.text[start:]


class End(NamedTuple):
    """End of a request that succeeded."""

    usage: Usage
    timings: Timings
    time_to_first_token_ns: int | None = None
    """Nanoseconds from arrival at the router until the first token was sent."""
    num_reasoning_tokens: int = 0
    """Completion tokens that are reasoning, without its markers."""
    speculation: SpeculationUse = NO_SPECULATION
    arithmetic: str = ""
    """Digest of the bits that workers have computed; empty if none is known of all tokens."""
    receipt: Mapping[str, Any] | None = None
    """Receipt in the form of JSON; None if the client wants none."""


def acceptance_of(use: SpeculationUse) -> dict[str, float] | None:
    """Returns the counts of drafts under vLLM's names; None if none was computed."""
    if not use.num_runs:
        return None
    return {
        "mean_acceptance_length": 1 + use.num_accepted / use.num_runs,
        "draft_acceptance_rate": use.num_accepted / use.num_drafts,
        "num_spec_steps": use.num_runs,
        "num_accepted_draft_tokens": use.num_accepted,
        "num_draft_tokens": use.num_drafts,
    }


def end_unmeasured(num_prompt_tokens: int) -> End:
    """Returns the end of a request whose scheduler was lost before it reported times."""
    return End(Usage(num_prompt_tokens, 0, 0), Timings(0, 0, 0, 0))


@dataclass(frozen=True, slots=True)
class Echo:
    """The prompt as it precedes each sequence's output."""

    text: str
    token_ids: list[int]
    text_offsets: list[int] = field(default_factory=list)
    """Offset of each token in the text, in characters."""

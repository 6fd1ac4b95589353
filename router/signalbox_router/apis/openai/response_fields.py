"""Fields that the answers of completions and of chats share."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

from signalbox_contract.errors import RpcError
from signalbox_contract.updates import NO_SPECULATION, SpeculationUse, Usage
from signalbox_router.apis.openai.requests.errors import error_body
from signalbox_router.apis.openai.requests.types import Body, GenerationBody
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Finish, FinishReason, acceptance_of

encode = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode
_REASONS = {
    FinishReason.STOP: "stop",
    FinishReason.STOP_TOKEN: "stop",
    FinishReason.STOP_STRING: "stop",
    FinishReason.LENGTH: "length",
    FinishReason.TOOL_CALLS: "tool_calls",
    FinishReason.ERROR: "error",
}


NULLS_OF_ANSWER = dict.fromkeys(
    ("service_tier", "kv_transfer_params", "ec_transfer_params", "metrics")
)
NULLS_OF_CHOICE = dict.fromkeys(("token_ids", "routed_experts", "weight_versions"))
NULLS_OF_USAGE = dict.fromkeys(("completion_tokens_details",))
"""Fields that vLLM's whole answers have also without a value; events of streams have none."""


def to_json(body: object) -> bytes:
    return encode(body).encode()


def to_event(body: object) -> bytes:
    """Returns a server-sent event."""
    return b"data: " + to_json(body) + b"\n\n"


class EventStream:
    """Parts of OpenAI's streams other than the events of updates."""

    says_it_waits: ClassVar[bool] = False
    end_of_stream: ClassVar[bytes] = b"data: [DONE]\n\n"

    def waiting(self) -> bytes:
        """Returns nothing: the status of these streams says whether the request was taken."""
        return b""

    def failure(self, error: RpcError, body: Body | None) -> bytes:
        return to_event(error_body(error, body))


class TextEvent:
    """An event that is the same each time but for one text, with all else encoded once."""

    TEXT = "\0"
    """Stands for the text. No string of the client's may follow it in the event."""

    __slots__ = ("_after", "_before")

    def __init__(self, body: object) -> None:
        """`body` has TEXT once, as a value."""
        self._before, _, self._after = encode(body).rpartition(encode(self.TEXT))

    def of(self, text: str) -> bytes:
        return f"data: {self._before}{encode(text)}{self._after}\n\n".encode()


def finish_fields(finish: Finish | None) -> dict[str, Any]:
    """Returns OpenAI's finish reason and vLLM's stop reason, the request's own stop that
    matched.

    A model's end-of-sequence token is an ordinary end without a stop reason.
    """
    if finish is None:
        return {"finish_reason": None, "stop_reason": None}
    stop = finish.stop_token_id if finish.reason is FinishReason.STOP_TOKEN else finish.stop
    fields: dict[str, Any] = {"finish_reason": _REASONS[finish.reason], "stop_reason": stop}
    if finish.reason is FinishReason.ERROR:
        fields["error_message"] = finish.error_message
    return fields


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseHead:
    """Fields at the top of every answer to one HTTP request."""

    id: str
    model: str
    tokenizer: Tokenizer
    system_fingerprint: str
    created: int = field(default_factory=lambda: int(time.time()))

    def fields(self, kind: str) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.model,
            "system_fingerprint": self.system_fingerprint,
        }


class UsagePlan(NamedTuple):
    """Events of a stream that contain the usage."""

    at_the_end: bool
    in_every_event: bool


def usage_plan(body: GenerationBody) -> UsagePlan:
    options = body.stream_options
    at_the_end = bool(options and options.include_usage)
    return UsagePlan(at_the_end, at_the_end and bool(options and options.continuous_usage_stats))


class UsageCounter:
    """Sums the tokens of all prompts of an HTTP request; keeps the receipt if there is one."""

    def __init__(self, plan: UsagePlan, *, echoes: bool = False, is_chat: bool = False) -> None:
        """Makes a counter.

        Args:
            echoes: True if each sequence begins with its prompt, which is not counted as generated.
            is_chat: True if the tokens of reasoning are told.
        """
        self._num_reasoning = 0 if is_chat else None
        self._of_prompts: dict[int, Usage] = {}
        self._drafts = NO_SPECULATION
        self._receipt: Mapping[str, Any] | None = None
        self._has_prediction = False
        self._counts_tokens = plan.in_every_event
        """False if the usage is asked for only when it is in the requests' ends."""
        self._echoes = echoes
        self._begun: set[tuple[int, int]] = set()

    def open(self, update: Update) -> None:
        """Counts the update's prompt once."""
        if update.position not in self._of_prompts:
            num_prompt_tokens = len(update.request.prompt_token_ids)
            self._of_prompts[update.position] = Usage(num_prompt_tokens, 0, 0)
            self._has_prediction |= bool(update.request.params.prediction)

    def add(self, update: Update) -> None:
        self.open(update)
        if update.end is not None:
            self._of_prompts[update.position] = update.end.usage
            self._receipt = update.end.receipt
            counts = zip(self._drafts, update.end.speculation, strict=True)
            self._drafts = SpeculationUse(*map(sum, counts))
            if self._num_reasoning is not None:
                self._num_reasoning += update.end.num_reasoning_tokens
        elif self._counts_tokens:
            self._count(update)

    def _count(self, update: Update) -> None:
        position = update.position
        usage = self._of_prompts[position]
        num_new = sum(len(delta.token_ids) for delta in update.deltas)
        if self._echoes:
            begun = {(position, delta.index) for delta in update.deltas} - self._begun
            num_new -= len(begun) * len(update.request.prompt_token_ids)
            self._begun |= begun
        self._of_prompts[position] = usage._replace(
            completion_tokens=usage.completion_tokens + num_new
        )

    def forget_completions(self) -> None:
        """Sets the completion tokens to 0, for text that the client does not get."""
        for position, usage in self._of_prompts.items():
            self._of_prompts[position] = usage._replace(completion_tokens=0)

    def so_far(self) -> dict[str, Any]:
        """Returns the usage without the details that are known only at the end."""
        usages = self._of_prompts.values()
        num_prompt = sum(usage.prompt_tokens for usage in usages)
        num_completion = sum(usage.completion_tokens for usage in usages)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_completion,
            "total_tokens": num_prompt + num_completion,
        }

    def body(self) -> dict[str, Any]:
        """Returns the usage of requests that have ended."""
        cached = sum(usage.cached_tokens for usage in self._of_prompts.values())
        body = {**self.so_far(), "prompt_tokens_details": {"cached_tokens": cached}}
        if self._num_reasoning is not None:
            details = {"reasoning_tokens": self._num_reasoning}
            if self._has_prediction:
                # Tokens behind a stop string were drawn, and are no part of the completion.
                num_accepted = min(self._drafts.num_predicted_accepted, body["completion_tokens"])
                details["accepted_prediction_tokens"] = num_accepted
                details["rejected_prediction_tokens"] = self._drafts.num_predicted - num_accepted
            body["completion_tokens_details"] = details
        return body

    def extras(self) -> dict[str, Any]:
        """Returns fields of an answer that not each one has: counts of drafts, and the receipt."""
        acceptance = acceptance_of(self._drafts)
        drafts = {"metrics": {"speculative_decoding": acceptance}} if acceptance else {}
        return drafts | self._receipt_field()

    def last_fields(self, plan: UsagePlan) -> dict[str, Any]:
        """Returns what the last event of a stream has; nothing if there is none."""
        if plan.at_the_end:
            return {"usage": self.body(), **self.extras()}
        return self._receipt_field()

    def _receipt_field(self) -> dict[str, Any]:
        return {} if self._receipt is None else {"receipt": self._receipt}

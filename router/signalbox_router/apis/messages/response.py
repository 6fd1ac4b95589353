"""Answers of the Messages API, complete or as server-sent events.

An answer is a list of content blocks. Both forms come from one list of events: the answer that is
not streamed is what its events add up to.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, ClassVar

from pydantic_core import from_json, to_json

from signalbox_contract.errors import RpcError
from signalbox_router.apis.agents import ReadConversation, encode_reasoning, omitted_text
from signalbox_router.apis.messages.errors import error_of
from signalbox_router.apis.messages.types import MessagesBody
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.openai.response_fields import TextEvent, to_event
from signalbox_router.apis.prefix_diagnostics import of_message
from signalbox_router.limits.json_text import partly_parsed
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, Finish, FinishReason, ToolCallDelta

Event = dict[str, Any]

BINDING_BETA = "thinking-binding-controls"
"""Beginning of the name of the beta whose answers have `input_transformations`, also empty."""
_REASONS = {
    FinishReason.STOP: "end_turn",
    FinishReason.STOP_TOKEN: "end_turn",
    FinishReason.STOP_STRING: "stop_sequence",
    FinishReason.TOOL_CALLS: "tool_use",
    FinishReason.LENGTH: "max_tokens",
}
_WINDOW = "model_context_window_exceeded"
_VALUES = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
    "input_json_delta": "partial_json",
}
"""The field of each kind of delta, which is the block's field but for a tool's input."""


def named_event(event: Mapping[str, Any]) -> bytes:
    """Returns a server-sent event, which this API names by its type."""
    return b"event: %b\n%b" % (event["type"].encode(), to_event(event))


PING = named_event({"type": "ping"})


class ContentBlocks:
    """Turns deltas into the events of content blocks, which follow each other."""

    def __init__(self, *, shows_thinking: bool, omits_text_of_thinking: bool) -> None:
        self._shows_thinking = shows_thinking
        self._omits_thoughts = omits_text_of_thinking
        self._index = -1
        self._open = ""
        """Type of the open block; empty if none is."""
        self._thoughts: list[str] = []

    def text_alone(self, delta: Delta) -> int | None:
        """Returns the open block's index if the delta is nothing but more of its text."""
        is_more = self._open == "text" and delta.text and delta.finish is None
        return self._index if is_more and not (delta.reasoning or delta.tool_calls) else None

    def events(self, delta: Delta) -> list[Event]:
        """Returns the events of a delta: its reasoning, then its text and its calls."""
        events: list[Event] = []
        if delta.reasoning and self._shows_thinking:
            self._begin(events, "thinking", {"thinking": "", "signature": ""})
            self._thoughts.append(delta.reasoning)
            if not self._omits_thoughts:
                events.append(self._delta("thinking_delta", delta.reasoning))
        for part in delta.parts():
            if isinstance(part, str):
                self._begin(events, "text", {"text": ""})
                events.append(self._delta("text_delta", part))
            else:
                events += self._call(part)
        if delta.finish is not None:
            events += self._close()
        return events

    def _call(self, call: ToolCallDelta) -> list[Event]:
        events: list[Event] = []
        if call.id:
            events += self._close()
            self._begin(events, "tool_use", {"id": call.id, "name": call.name, "input": {}})
        if call.arguments:
            events.append(self._delta("input_json_delta", call.arguments))
        return events

    def _begin(self, events: list[Event], kind: str, fields: Event) -> None:
        """Opens a block unless one of the kind is open."""
        if self._open == kind:
            return
        events += self._close()
        self._open = kind
        self._index += 1
        block = {"type": kind, **fields}
        events.append({"type": "content_block_start", "index": self._index, "content_block": block})

    def _close(self) -> list[Event]:
        if not self._open:
            return []
        events = [{"type": "content_block_stop", "index": self._index}]
        if self._open == "thinking":
            signature = encode_reasoning("".join(self._thoughts))
            events.insert(0, self._delta("signature_delta", signature))
            self._thoughts.clear()
        self._open = ""
        return events

    def _delta(self, kind: str, value: str) -> Event:
        delta = {"type": kind, _VALUES[kind]: value}
        return {"type": "content_block_delta", "index": self._index, "delta": delta}


def added_up(events: Sequence[Event]) -> list[dict[str, Any]]:
    """Returns the content blocks that events describe."""
    blocks: list[dict[str, Any]] = []
    values: dict[tuple[int, str], list[str]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks.append(dict(event["content_block"]))
        elif event["type"] == "content_block_delta":
            field = _VALUES[event["delta"]["type"]]
            values.setdefault((event["index"], field), []).append(event["delta"][field])
    for (index, field), parts in values.items():
        text = "".join(parts)
        if field == "partial_json":
            blocks[index]["input"] = _input(text)
        else:
            blocks[index][field] += text
    return blocks


def _input(arguments: str) -> dict[str, Any]:
    """Returns the arguments of a call; of one that was cut, those that are there.

    A number too large for a float is null: JSON cannot hold it.
    """
    value = from_json(to_json(partly_parsed(arguments), inf_nan_mode="null"))
    return value if isinstance(value, dict) else {}


class MessageAnswer:
    """Converts the updates of one generation to an answer."""

    says_it_waits: ClassVar[bool] = True
    end_of_stream: ClassVar[bytes] = b""

    def __init__(
        self,
        body: MessagesBody,
        read: ReadConversation,
        *,
        message_id: str,
        model: str,
        betas: str,
    ) -> None:
        """`betas` is the value of the header anthropic-beta."""
        self._max_tokens = body.max_tokens
        display = body.thinking and body.thinking.display
        self._blocks = ContentBlocks(
            shows_thinking=body.shows_thinking, omits_text_of_thinking=display == "omitted"
        )
        self._head: dict[str, Any] = {
            "id": message_id,
            "type": "message",
            "role": "assistant",
            "model": model,
        }
        self._notes: dict[str, Any] = {}
        if read.omitted:
            self._notes["metadata"] = {"omitted_tools": omitted_text(read.omitted)}
        if read.input_transformations or BINDING_BETA in betas:
            self._notes["input_transformations"] = list(read.input_transformations)
        self._edits: dict[str, Any] = {}
        if body.context_management is not None:
            self._edits["context_management"] = {"applied_edits": []}
        self._asked = body.diagnostics
        self._said: dict[str, Any] = {}
        """Diagnostics in the first event."""
        self._finish: Finish | None = None
        self._last: Update | None = None
        self._has_begun = False
        self._text_events: tuple[int, TextEvent] | None = None
        """The open text block's index, and the event of a delta of it."""

    async def whole(self, updates: AsyncIterator[Update]) -> dict[str, Any]:
        events: list[Event] = []
        async for update in updates:
            events += self._events(update)
        content = added_up(events)
        return {
            **self._head, "content": content, **self._end(), "container": None, **self._edits,
            **self._notes, **self._diagnostics(), "usage": self._usage(),
        }  # fmt: skip

    def events(self, update: Update) -> bytes:
        if self._has_begun and update.end is None and len(update.deltas) == 1 and self._max_tokens:
            (delta,) = update.deltas
            if (index := self._blocks.text_alone(delta)) is not None:
                return self._text_event(index, delta.text)
        new = self._events(update)
        start = b"" if self._has_begun else self._start()
        self._has_begun = True
        return start + b"".join(map(named_event, new))

    async def last_event(self) -> bytes:
        end = {"type": "message_delta", "delta": self._end(), "usage": self._usage(), **self._edits}
        if (news := self._diagnostics()) != self._said:
            end |= news
        return named_event(end) + named_event({"type": "message_stop"})

    def waiting(self) -> bytes:
        return PING

    def failure(self, error: RpcError, body: Body | None) -> bytes:
        return named_event({"type": "error", "error": error_of(error, body)})

    def _events(self, update: Update) -> list[Event]:
        self._last = update
        events: list[Event] = []
        for delta in update.deltas:
            self._finish = delta.finish or self._finish
            if self._max_tokens:
                events += self._blocks.events(delta)
        return events

    def _text_event(self, index: int, text: str) -> bytes:
        if self._text_events is None or self._text_events[0] != index:
            delta = {"type": "text_delta", "text": TextEvent.TEXT}
            event = {"type": "content_block_delta", "index": index, "delta": delta}
            self._text_events = (index, TextEvent(event))
        return b"event: content_block_delta\n" + self._text_events[1].of(text)

    def _start(self) -> bytes:
        no_end = dict.fromkeys(("stop_reason", "stop_sequence", "stop_details", "container"))
        self._said = self._diagnostics()
        message = {
            **self._head, "content": [], **no_end, **self._notes, **self._said,
            "usage": self._usage(),
        }  # fmt: skip
        return named_event({"type": "message_start", "message": message})

    def _diagnostics(self) -> dict[str, Any]:
        """Returns the field that says what broke the prefix, if the client asks; whether the
        scheduler has found the prefix is known at the end."""
        if self._asked is None:
            return {}
        watch = self._last.request.watch if self._last and self._asked.compares else None
        return {"diagnostics": of_message(watch.comparison if watch is not None else None)}

    def _end(self) -> dict[str, Any]:
        """Returns why the message ended."""
        finish, usage = self._finish, self._last and self._last.end and self._last.end.usage
        assert finish is not None and usage is not None
        reason = _REASONS[finish.reason if self._max_tokens else FinishReason.LENGTH]
        if finish.reason is FinishReason.LENGTH and usage.completion_tokens < self._max_tokens:
            reason = _WINDOW
        stop = finish.stop if finish.reason is FinishReason.STOP_STRING else None
        return {"stop_reason": reason, "stop_sequence": stop, "stop_details": None}

    def _usage(self) -> dict[str, Any]:
        """Returns the usage so far; what was found in the prefix cache is known at the end."""
        assert self._last is not None
        end = self._last.end
        num_prompt = len(self._last.request.prompt_token_ids)
        num_cached = 0 if end is None else end.usage.cached_tokens
        counted = end if self._max_tokens else None
        num_new = 0 if counted is None else counted.usage.completion_tokens
        num_thinking = 0 if counted is None else counted.num_reasoning_tokens
        return {
            "input_tokens": num_prompt - num_cached,
            "cache_creation_input_tokens": 0,
            "cache_read_input_tokens": num_cached,
            "cache_creation": {"ephemeral_5m_input_tokens": 0, "ephemeral_1h_input_tokens": 0},
            "output_tokens": num_new,
            "output_tokens_details": {"thinking_tokens": num_thinking},
            "server_tool_use": None,
            "service_tier": "standard",
        }

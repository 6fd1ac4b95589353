"""Items of an answer of the Responses API, and the events of a stream that make them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from signalbox_router.apis.agents import encode_reasoning
from signalbox_router.apis.openai.custom_input import CustomInput
from signalbox_router.apis.openai.response_fields import encode
from signalbox_router.apis.responses.tools_codec import Origin
from signalbox_router.requests.request_output import Delta, ToolCallDelta

Logprobs = Sequence[Mapping[str, Any]]


class Events:
    """Writes the events of one stream, which are numbered."""

    def __init__(self) -> None:
        self._number = 0

    def next_number(self) -> int:
        self._number += 1
        return self._number - 1

    def write(self, kind: str, fields: Mapping[str, Any]) -> str:
        return f"{opening_of(kind, fields)}{self.end()}"

    def end(self) -> str:
        """Returns the end of an event whose other fields are written."""
        return f',"sequence_number":{self.next_number()}}}\n\n'


def opening_of(kind: str, fields: Mapping[str, Any]) -> str:
    return f"event: {kind}\ndata: {encode({'type': kind, **fields})[:-1]}"


class ItemKind(NamedTuple):
    """Names by which an item of one type is written."""

    prefix: str
    """Text that the item's id begins with."""
    events: str
    """Name that its events of text begin with."""
    text: str
    """Field of the whole text."""
    part: str = ""
    """Name that the events of its part begin with; empty if it has no parts."""
    part_type: str = ""
    part_index: str = ""
    """Field with the index of its part."""


MESSAGE = ItemKind(
    "msg", "response.output_text", "text", "response.content_part", "output_text", "content_index"
)
REASONING = ItemKind(
    "rs", "response.reasoning_text", "text", "response.content_part", "reasoning_text",
    "content_index",
)  # fmt: skip
SUMMARY = ItemKind(
    "rs", "response.reasoning_summary_text", "text", "response.reasoning_summary_part",
    "summary_text", "summary_index",
)  # fmt: skip
FUNCTION = ItemKind("fc", "response.function_call_arguments", "arguments")
CUSTOM = ItemKind("ctc", "response.custom_tool_call_input", "input")


_NO_TOOL = Origin("")


@dataclass(slots=True, kw_only=True)
class Item:
    """One item, as its text arrives."""

    kind: ItemKind
    id: str
    index: int
    events: Events
    encrypts: bool = False
    """True if reasoning has its encrypted_content."""
    call_id: str = ""
    origin: Origin = _NO_TOOL
    """The tool that is called."""
    texts: list[str] = field(default_factory=list)
    logprobs: list[Mapping[str, Any]] = field(default_factory=list)
    status: str = "in_progress"
    input: CustomInput = field(default_factory=CustomInput)
    """Reads the text of a custom tool's call."""
    _delta: str = ""
    """The event of a delta up to its text."""

    def begin(self) -> str:
        added = {"output_index": self.index, "item": self.body()}
        self._delta = opening_of(f"{self.kind.events}.delta", self._place()) + ',"delta":'
        return self.events.write("response.output_item.added", added) + self._part_event("added")

    def add(self, text: str, logprobs: Logprobs = ()) -> str:
        """Adds text, which is not empty; returns the event."""
        self.texts.append(text)
        if self.kind is not MESSAGE:
            return f"{self._delta}{encode(text)}{self.events.end()}"
        self.logprobs += logprobs
        shown = encode(_of_event(logprobs)) if logprobs else "[]"
        return f'{self._delta}{encode(text)},"logprobs":{shown}{self.events.end()}'

    def end(self, status: str) -> str:
        self.status = status
        fields = {**self._place(), self.kind.text: "".join(self.texts)}
        if self.kind is MESSAGE:
            fields["logprobs"] = _of_event(self.logprobs)
        done = self.events.write(f"{self.kind.events}.done", fields) + self._part_event("done")
        item = {"output_index": self.index, "item": self.body()}
        return done + self.events.write("response.output_item.done", item)

    def body(self) -> dict[str, Any]:
        body: dict[str, Any] = {"id": self.id}
        parts = [self._part()] if self.texts else []
        text = "".join(self.texts)
        if self.kind is MESSAGE:
            body |= {"type": "message", "status": self.status, "role": "assistant"}
            return body | {"content": parts}
        if self.kind in (REASONING, SUMMARY):
            body |= {"type": "reasoning", "status": self.status, "summary": []}
            body["summary" if self.kind is SUMMARY else "content"] = parts
            is_over = self.encrypts and self.status != "in_progress"
            return body | {"encrypted_content": encode_reasoning(text)} if is_over else body
        body |= {"call_id": self.call_id, "name": self.origin.name, self.kind.text: text}
        if self.origin.namespace:
            body["namespace"] = self.origin.namespace
        if self.kind is CUSTOM:
            return body | {"type": "custom_tool_call"}
        return body | {"type": "function_call", "status": self.status}

    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self.id, "output_index": self.index}
        return place | {self.kind.part_index: 0} if self.kind.part_index else place

    def _part(self) -> dict[str, Any]:
        part: dict[str, Any] = {"type": self.kind.part_type, "text": "".join(self.texts)}
        if self.kind is MESSAGE:
            part |= {"annotations": [], "logprobs": self.logprobs}
        return part

    def _part_event(self, name: str) -> str:
        if not self.kind.part:
            return ""
        return self.events.write(
            f"{self.kind.part}.{name}", {**self._place(), "part": self._part()}
        )


def _of_event(logprobs: Logprobs) -> list[dict[str, Any]]:
    """Returns log probabilities as events have them: without bytes."""
    return [
        {
            "token": one["token"],
            "logprob": one["logprob"],
            "top_logprobs": [
                {"token": top["token"], "logprob": top["logprob"]} for top in one["top_logprobs"]
            ],
        }
        for one in logprobs
    ]


class OutputItems:
    """The items of one answer: reasoning, text and calls in the order in which they come."""

    def __init__(
        self,
        name: str,
        origins: Mapping[str, Origin],
        *,
        summarizes: bool,
        encrypts: bool,
        item_type: type[Item] = Item,
    ) -> None:
        """`name` makes the items' ids unique."""
        self._item_type = item_type
        self.events = Events()
        self.items: list[Item] = []
        self._name = name
        self._origins = origins
        self._reasoning = SUMMARY if summarizes else REASONING
        self._encrypts = encrypts
        self._open: Item | None = None

    def add(self, delta: Delta, logprobs: Logprobs) -> str:
        """Returns the events of new output; `logprobs` are of its text."""
        events = self._add_text(self._reasoning, delta.reasoning) if delta.reasoning else ""
        for part in delta.parts():
            if isinstance(part, str):
                events += self._add_text(MESSAGE, part, logprobs)
                logprobs = ()
            else:
                events += self._add_call(part)
        return events

    def end(self, status: str) -> str:
        """Ends the last item with a status; returns the events."""
        item, self._open = self._open, None
        if item is None:
            return ""
        rest = item.input.flush() if item.kind is CUSTOM else ""
        return (item.add(rest) if rest else "") + item.end(status)

    def bodies(self) -> list[dict[str, Any]]:
        return [item.body() for item in self.items]

    def _add_text(self, kind: ItemKind, text: str, logprobs: Logprobs = ()) -> str:
        item = self._open
        if item is not None and item.kind is kind:
            return item.add(text, logprobs)
        begun = self._begin(kind)
        return begun + self.items[-1].add(text, logprobs)

    def _add_call(self, call: ToolCallDelta) -> str:
        begun = ""
        if call.id:
            origin = self._origins.get(call.name, Origin(call.name))
            kind = CUSTOM if origin.is_custom else FUNCTION
            begun = self._begin(kind, call_id=call.id, origin=origin)
        item = self.items[-1]
        text = item.input.push(call.arguments) if item.kind is CUSTOM else call.arguments
        return begun + (item.add(text) if text else "")

    def _begin(self, kind: ItemKind, **fields: Any) -> str:
        ended = self.end("completed")
        index = len(self.items)
        item = self._item_type(
            kind=kind,
            id=f"{kind.prefix}_{self._name}_{index}",
            index=index,
            events=self.events,
            encrypts=self._encrypts,
            **fields,
        )
        self.items.append(item)
        self._open = item
        return ended + item.begin()

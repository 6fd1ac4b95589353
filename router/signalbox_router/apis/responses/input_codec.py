"""Converts the input of the Responses API to a conversation.

What an answer had as several items, reasoning, text and calls, is one message of the assistant.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from signalbox_router.apis.agents import ReadConversation, decode_reasoning
from signalbox_router.apis.inference.chat_codec import call_arguments
from signalbox_router.apis.openai.requests.errors import BadRequest, NotServed
from signalbox_router.apis.responses.item_types import (
    ContentPart,
    CustomCall,
    FunctionCall,
    InputItem,
    InputMessage,
    OtherItem,
    ReasoningInput,
    ToolOutput,
)
from signalbox_router.apis.responses.tools_codec import Origin, model_name, offered_tools
from signalbox_router.apis.responses.types import PromptBody
from signalbox_router.prompt.chat.conversation import (
    INPUT,
    UP_TO_TEMPLATE,
    Conversation,
    Message,
    Thinking,
    ToolCall,
    check_counts,
    check_num_parts,
)

_TEXTS = ("input_text", "output_text", "text")
_SYSTEM = ("system", "developer")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadInput(ReadConversation):
    """The conversation of a body, with the tools as the client names them."""

    origins: Mapping[str, Origin]
    """Each tool as the body has it, by the name that the model knows."""


def read_input(body: PromptBody) -> ReadInput:
    """Returns the conversation, unchecked. Raises BadRequest or InvalidArgument.

    It empties the body's input: otherwise the objects would live until the request ends.
    """
    _check_format(body)
    offered = offered_tools(body)
    removed: list[dict[str, str]] = []
    places: list[int] = [-1] if body.instructions else []
    messages = [Message("system", body.instructions)] if body.instructions else []
    if isinstance(body.input, str):
        places.append(0)
        messages.append(Message("user", body.input))
    else:
        check_counts(num_messages=len(body.input or ()), num_tools=0)
        messages += _messages(body.input or (), removed, places)
        if body.input:
            body.input = []
    effort = body.reasoning.effort if body.reasoning else None
    conversation = Conversation(
        messages=messages,
        tools=offered.tools,
        tool_choice=offered.choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        thinking=UP_TO_TEMPLATE if effort is None else Thinking(effort=effort),
    )
    return ReadInput(
        conversation=conversation,
        omitted=offered.omitted,
        input_transformations=removed,
        drops_turns=body.truncation == "auto",
        places=places,
        origins=offered.origins,
    )


def _check_format(body: PromptBody) -> None:
    format_ = body.text.format if body.text else None
    if format_ is not None and (format_.type == "json_schema") is (format_.schema_ is None):
        name = "text.format.schema"
        raise BadRequest(f"{name}: it is for the type json_schema alone, which needs it", name)


@dataclass(slots=True)
class _Turn:
    """The items of the assistant that are not yet a message."""

    texts: list[str] = field(default_factory=list)
    reasoning: list[str] = field(default_factory=list)
    calls: list[ToolCall] = field(default_factory=list)
    place: int = 0
    """Index of the first of them."""

    def message(self, places: list[int], *, next_place: int) -> Iterator[Message]:
        """Yields the items as a message, if there are any, after it has added its place.

        The items are forgotten; those that follow begin at `next_place`.
        """
        if self.texts or self.reasoning or self.calls:
            places.append(self.place)
            yield Message(
                "assistant",
                tuple(self.texts),
                tool_calls=tuple(self.calls),
                reasoning="\n".join(self.reasoning),
            )
        self.texts, self.reasoning, self.calls = [], [], []
        self.place = next_place


def _messages(
    items: Sequence[InputItem], removed: list[dict[str, str]], places: list[int]
) -> Iterator[Message]:
    """Yields the messages, after it has added the index of the first item of each."""
    turn, names = _Turn(), dict[str, str]()
    for i, item in enumerate(items):
        place = f"input[{i}]"
        match item:
            case InputMessage(role="assistant"):
                if turn.texts and not turn.calls:  # results follow the message of their calls
                    yield from turn.message(places, next_place=i)
                turn.texts += _texts(item.content, f"{place}.content")
            case ReasoningInput():
                if turn.texts and not turn.calls:
                    yield from turn.message(places, next_place=i)
                turn.reasoning += _reasoning(item, removed)
            case FunctionCall() | CustomCall():
                call = _call(item, place)
                names[call.id] = call.name
                turn.calls.append(call)
                check_num_parts(len(turn.calls), field=place)
            case InputMessage():
                yield from turn.message(places, next_place=i + 1)
                texts = _texts(item.content, f"{place}.content")
                if not texts:
                    raise BadRequest(f"{place}.content: it is empty", f"{place}.content")
                places.append(i)
                yield Message("system" if item.role in _SYSTEM else item.role, texts)
            case ToolOutput():
                yield from turn.message(places, next_place=i + 1)
                output = _output(item, place, names)
                places.append(i)
                yield output
            case OtherItem(type="item_reference"):
                raise NotServed(
                    f"{place}: single items are not referred to; send them, with store: false",
                    place,
                )
            case OtherItem():
                raise NotServed(f"{place}: items of type {item.type[:100]} are not served", place)
    yield from turn.message(places, next_place=len(items))


def _reasoning(item: ReasoningInput, removed: list[dict[str, str]]) -> Iterator[str]:
    if item.encrypted_content:
        decoded = decode_reasoning(item.encrypted_content)
        if decoded is not None:
            yield decoded
            return
    parts = item.content or item.summary or []
    yield from (part.text for part in parts)
    if item.encrypted_content and not parts:
        removed.append(_removed(item.id or ""))


def _removed(item_id: str) -> dict[str, str]:
    """Returns the entry for a reasoning item that another server has encoded."""
    names = {"id": item_id, "type": "reasoning"}
    return names | {"action": "removed", "reason": "model_mismatch"}


def _call(item: FunctionCall | CustomCall, place: str) -> ToolCall:
    name = model_name(item.name, item.namespace)
    if isinstance(item, CustomCall):
        return ToolCall(item.call_id, name, {INPUT: item.input})
    return ToolCall(item.call_id, name, call_arguments(item.arguments, f"{place}.arguments"))


def _output(item: ToolOutput, place: str, names: dict[str, str]) -> Message:
    name = model_name(item.name, item.namespace) if item.name else names.get(item.call_id, "")
    texts = _texts(item.output, f"{place}.output")
    return Message("tool", texts or ("",), tool_call_id=item.call_id, name=name)


def _texts(content: str | Sequence[ContentPart], place: str) -> tuple[str, ...]:
    if isinstance(content, str):
        return (content,)
    check_num_parts(len(content), field=place)
    return tuple(_text(part, f"{place}[{i}]") for i, part in enumerate(content))


def _text(part: ContentPart, place: str) -> str:
    if part.type in _TEXTS:
        text, name = part.text, "text"
    elif part.type == "refusal":
        text, name = part.refusal, "refusal"
    else:
        raise NotServed(
            f"{place}.type: {part.type[:100]} is not served; the model reads text", f"{place}.type"
        )
    if text is None:
        raise BadRequest(f"{place}.{name}: Field required", f"{place}.{name}")
    return text

"""Converts conversations of inference.v1 to plain data."""

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from google.protobuf import struct_pb2

from signalbox_contract.errors import InvalidArgument
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.limits.json_text import TooMuchJson, parsed
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    Message,
    Thinking,
    Tool,
    ToolCall,
    ToolChoice,
    ToolMode,
    arguments_of,
    check_counts,
    check_num_parts,
)

_ROLES = {
    pb.CHAT_ROLE_SYSTEM: "system",
    pb.CHAT_ROLE_USER: "user",
    pb.CHAT_ROLE_ASSISTANT: "assistant",
    pb.CHAT_ROLE_TOOL: "tool",
}
_MODES = {
    pb.TOOL_CHOICE_MODE_AUTO: ToolMode.AUTO,
    pb.TOOL_CHOICE_MODE_NONE: ToolMode.NONE,
    pb.TOOL_CHOICE_MODE_REQUIRED: ToolMode.REQUIRED,
}
MAX_TEMPLATE_VALUES = 16_384
"""Most JSON values in all variables for a chat template."""
_MAX_EXACT_INTEGER = 1 << 53


def conversation(request: pb.ChatRequest) -> Conversation:
    """Returns the request's conversation. Raises InvalidArgument for values that are not
    supported."""
    check_counts(num_messages=len(request.messages), num_tools=len(request.tools))
    choice = _tool_choice(request)
    continues = request.continue_final_message
    opens = request.add_generation_prompt
    return Conversation(
        messages=[_message(i, message) for i, message in enumerate(request.messages)],
        tools=[_tool(i, tool) for i, tool in enumerate(request.tools)],
        tool_choice=choice,
        parallel_tool_calls=_default_true(request, "parallel_tool_calls"),
        add_generation_prompt=opens if request.HasField("add_generation_prompt") else not continues,
        continue_final_message=continues,
        chat_template=request.chat_template if request.HasField("chat_template") else None,
        template_kwargs=_template_kwargs(request.chat_template_kwargs),
        parse_special_tokens=request.parse_special_tokens,
        thinking=_thinking(request.thinking),
    )


def check_structured_output(request: pb.ChatRequest, choice: ToolChoice) -> None:
    """Raises InvalidArgument for a structured output beside calls that must be made."""
    is_forced = choice.mode is ToolMode.REQUIRED
    if is_forced and request.sampling_params.HasField("structured_output"):
        allowed = "auto or none beside a structured output"
        raise InvalidArgument("tool_choice", "a call that must be made", allowed)


def _default_true(request: pb.ChatRequest, name: str) -> bool:
    return bool(getattr(request, name)) if request.HasField(name) else True


def _message(position: int, message: pb.ChatMessage) -> Message:
    field = f"messages[{position}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidArgument(f"{field}.role", int(message.role), "one of CHAT_ROLE_*")
    check_num_parts(len(message.content), field=f"{field}.content")
    check_num_parts(len(message.tool_calls), field=f"{field}.tool_calls")
    for i, part in enumerate(message.content):
        if not part.HasField("text"):
            raise InvalidArgument(f"{field}.content[{i}]", None, "a text part")
    return Message(
        role,
        tuple(part.text for part in message.content),
        tool_calls=_tool_calls(message.tool_calls, field=f"{field}.tool_calls"),
        tool_call_id=message.tool_call_id,
        reasoning=message.reasoning,
        name=message.name,
    )


def _tool_calls(calls: Iterable[pb.ToolCall], *, field: str) -> tuple[ToolCall, ...]:
    return tuple(
        ToolCall(call.id, call.name, call_arguments(call.arguments, f"{field}[{i}].arguments"))
        for i, call in enumerate(calls)
    )


def _tool(position: int, tool: pb.Tool) -> Tool:
    field = f"tools[{position}].parameters"
    parameters = _json_object(tool.parameters, field) if tool.parameters else None
    return Tool(tool.name, tool.description, parameters, tool.strict)


def _tool_choice(request: pb.ChatRequest) -> ToolChoice:
    choice = request.tool_choice
    match choice.WhichOneof("choice"):
        case "tool":
            return ToolChoice(ToolMode.REQUIRED, choice.tool)
        case "mode":
            if choice.mode not in _MODES:
                allowed = "one of TOOL_CHOICE_MODE_*"
                raise InvalidArgument("tool_choice.mode", int(choice.mode), allowed)
            return ToolChoice(_MODES[choice.mode])
    return ToolChoice()


def _thinking(thinking: pb.Thinking) -> Thinking:
    return Thinking(
        is_enabled=thinking.is_enabled if thinking.HasField("is_enabled") else None,
        effort=thinking.effort if thinking.HasField("effort") else None,
        budget=thinking.budget if thinking.HasField("budget") else None,
    )


def _json_object(text: str, field: str) -> dict[str, Any]:
    """Returns the object that a text holds. Raises InvalidArgument."""
    with _within_bounds(field):
        try:
            value = parsed(text)
        except TooMuchJson:
            raise
        except ValueError:
            value = None
    if not isinstance(value, dict):
        raise InvalidArgument(field, text, "a JSON object, as text")
    return value


def call_arguments(text: str, field: str) -> Mapping[str, Any]:
    """Returns the arguments of an earlier call. Raises InvalidArgument for too much JSON."""
    with _within_bounds(field):
        return arguments_of(text)


@contextmanager
def _within_bounds(field: str) -> Iterator[None]:
    try:
        yield
    except TooMuchJson as error:
        raise InvalidArgument(field, f"JSON of {error.found}", error.allowed) from None


def _template_kwargs(kwargs: Mapping[str, struct_pb2.Value]) -> dict[str, Any]:
    values = iter(range(MAX_TEMPLATE_VALUES))
    return {name: _plain(value, values) for name, value in kwargs.items()}


def _plain(value: struct_pb2.Value, values: Iterator[int]) -> Any:
    """Returns a plain value; whole numbers become integers, because the wire has only floats.

    Args:
        values: yields once for each value that is still allowed.
    """
    if next(values, None) is None:
        count = f"more than {MAX_TEMPLATE_VALUES} JSON values"
        raise InvalidArgument("chat_template_kwargs", count, f"at most {MAX_TEMPLATE_VALUES}")
    match value.WhichOneof("kind"):
        case "struct_value":
            fields = value.struct_value.fields
            return {name: _plain(child, values) for name, child in fields.items()}
        case "list_value":
            return [_plain(child, values) for child in value.list_value.values]
        case "number_value":
            return _number(value.number_value)
        case "string_value":
            return value.string_value
        case "bool_value":
            return value.bool_value
    return None


def _number(number: float) -> int | float:
    if not math.isfinite(number):
        raise InvalidArgument("chat_template_kwargs", number, "JSON values")
    is_whole = number.is_integer() and abs(number) <= _MAX_EXACT_INTEGER
    return int(number) if is_whole else number

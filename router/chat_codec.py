"""Conversations of the public contract to plain data."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

from google.protobuf import json_format, struct_pb2

from protos.inference.v1 import inference_pb2 as pb
from router.conversation import Conversation, Message, Tool, ToolCall, ToolChoice, ToolMode
from rpc.errors import InvalidArgument

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
_MAX_EXACT_INTEGER = 1 << 53


def conversation(request: pb.ChatRequest) -> Conversation:
    """Raises InvalidArgument for what cannot be put into words of ours."""
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
    )


def constrained(request: pb.ChatRequest, schema: Mapping[str, Any]) -> pb.ChatRequest:
    """Returns the request with its output held to a schema, which its tool choice asks for."""
    if request.sampling_params.HasField("structured_output"):
        allowed = "auto or none beside a structured output"
        raise InvalidArgument("tool_choice", "a call that must be made", allowed)
    changed = pb.ChatRequest()
    changed.CopyFrom(request)
    changed.sampling_params.structured_output.json_schema = json.dumps(schema)
    return changed


def _default_true(request: pb.ChatRequest, name: str) -> bool:
    return bool(getattr(request, name)) if request.HasField(name) else True


def _message(position: int, message: pb.ChatMessage) -> Message:
    field = f"messages[{position}]"
    role = _ROLES.get(message.role)
    if role is None:
        raise InvalidArgument(f"{field}.role", int(message.role), "one of CHAT_ROLE_*")
    if not message.content and not message.tool_calls:
        raise InvalidArgument(f"{field}.content", [], "at least one part")
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


def _tool_calls(calls: Iterable[pb.ToolCall], *, field: str) -> list[ToolCall]:
    return [
        ToolCall(call.id, call.name, _object(call.arguments or "{}", f"{field}[{i}].arguments"))
        for i, call in enumerate(calls)
    ]


def _tool(position: int, tool: pb.Tool) -> Tool:
    field = f"tools[{position}].parameters"
    parameters = _object(tool.parameters, field) if tool.parameters else None
    return Tool(tool.name, tool.description, parameters)


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


def _object(text: str, field: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    if not isinstance(value, dict):
        raise InvalidArgument(field, text, "a JSON object, as text")
    return value


def _template_kwargs(kwargs: Mapping[str, struct_pb2.Value]) -> dict[str, Any]:
    try:
        return {name: _plain(json_format.MessageToDict(value)) for name, value in kwargs.items()}
    except ValueError as error:  # NaN and infinity
        raise InvalidArgument("chat_template_kwargs", str(error), "JSON values") from None


def _plain(value: Any) -> Any:
    """Makes integers of whole numbers, all of which the wire holds as floats."""
    match value:
        case dict():
            return {name: _plain(child) for name, child in value.items()}
        case list():
            return [_plain(child) for child in value]
        case float() if value.is_integer() and abs(value) <= _MAX_EXACT_INTEGER:
            return int(value)
    return value

"""The JSON Schema of an answer that must be tool calls."""

from collections.abc import Mapping
from typing import Any

from router.conversation import Conversation, Tool, ToolMode
from rpc.errors import InvalidArgument

_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


def forced_schema(conversation: Conversation) -> dict[str, Any] | None:
    """Returns what the whole answer must conform to, if the tool choice says so.

    One named tool: its arguments. Any tool: a list of {"name": ..., "parameters": ...}.
    """
    choice = conversation.tool_choice
    if choice.mode is not ToolMode.REQUIRED:
        return None
    if choice.tool:
        tool = next(tool for tool in conversation.tools if tool.name == choice.tool)
        return _arguments_schema(_parameters_of(tool))
    schema: dict[str, Any] = {
        "type": "array",
        "minItems": 1,
        "items": {"anyOf": [_call_schema(tool) for tool in conversation.tools]},
    }
    if not conversation.parallel_tool_calls:
        schema["maxItems"] = 1
    for keyword in ("$defs", "definitions"):  # references are from the root
        if definitions := _merged(conversation, keyword):
            schema[keyword] = definitions
    return schema


def _call_schema(tool: Tool) -> dict[str, Any]:
    parameters = {
        key: value
        for key, value in _parameters_of(tool).items()
        if key not in ("$defs", "definitions")
    }
    return {
        "type": "object",
        "properties": {
            "name": {"const": tool.name},
            "parameters": _arguments_schema(parameters),
        },
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _parameters_of(tool: Tool) -> Mapping[str, Any]:
    return _NO_PARAMETERS if tool.parameters is None else tool.parameters


def _arguments_schema(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments are an object, whether the schema says so or not."""
    return {"type": "object", **parameters}


def _merged(conversation: Conversation, keyword: str) -> Mapping[str, Any]:
    merged: dict[str, Any] = {}
    for i, tool in enumerate(conversation.tools):
        for name, schema in _parameters_of(tool).get(keyword, {}).items():
            if merged.setdefault(name, schema) != schema:
                allowed = "definitions that all tools agree on, with tool_choice required"
                raise InvalidArgument(f"tools[{i}].parameters.{keyword}", name, allowed)
    return merged

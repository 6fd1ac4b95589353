"""The JSON Schema of an answer that must be tool calls."""

from collections.abc import Mapping
from typing import Any

from contract.errors import InvalidArgument
from router.prompt.conversation import Conversation, Tool, ToolMode

_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


def forced_schema(conversation: Conversation) -> dict[str, Any] | None:
    """Returns the schema of the whole answer if the tool choice forces a call; otherwise None.

    For a named tool it is the schema of its arguments, for any tool that of a list of {"name": ...,
    "parameters": ...}.
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
    for keyword in ("$defs", "definitions"):  # references start at the root
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
    """Returns a schema of arguments; they are an object even if the schema does not require it."""
    return {"type": "object", **parameters}


def _merged(conversation: Conversation, keyword: str) -> Mapping[str, Any]:
    merged: dict[str, Any] = {}
    for i, tool in enumerate(conversation.tools):
        field = f"tools[{i}].parameters.{keyword}"
        definitions = _parameters_of(tool).get(keyword, {})
        if not isinstance(definitions, Mapping):
            raise InvalidArgument(field, definitions, "an object, with tool_choice required")
        for name, schema in definitions.items():
            if merged.setdefault(name, schema) != schema:
                allowed = "definitions that all tools agree on, with tool_choice required"
                raise InvalidArgument(field, name, allowed)
    return merged

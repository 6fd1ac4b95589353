"""The JSON Schema of an answer that must be tool calls."""

from typing import Any

from signalbox_router.parsers.call_rules import arguments_schema
from signalbox_router.prompt.chat.conversation import Conversation, ToolMode


def forced_schema(conversation: Conversation) -> dict[str, Any] | None:
    """Returns the schema of the whole answer if the tool choice forces a call; otherwise None.

    For a named tool it is the schema of its arguments, for any tool that of a list of {"name": ...,
    "parameters": ...}. Raises InvalidArgument for a tool whose input is in a Lark grammar.
    """
    choice = conversation.tool_choice
    if choice.mode is not ToolMode.REQUIRED:
        return None
    may_call = {tool.name for tool in conversation.callable_tools if choice.tool in ("", tool.name)}
    arguments = {
        tool.name: arguments_schema(i, tool._replace(strict=True))
        for i, tool in enumerate(conversation.tools)
        if tool.name in may_call
    }
    if choice.tool:
        return arguments[choice.tool]
    definitions = dict[str, Any]()
    for schema in arguments.values():
        definitions |= schema.pop("$defs")
    calls = [_call_schema(name, schema) for name, schema in arguments.items()]
    answer = {"type": "array", "minItems": 1, "items": {"anyOf": calls}, "$defs": definitions}
    return answer if conversation.parallel_tool_calls else {**answer, "maxItems": 1}


def _call_schema(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": name}, "parameters": arguments},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }

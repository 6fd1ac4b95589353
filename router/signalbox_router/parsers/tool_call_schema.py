"""The JSON Schema of an answer that must be tool calls."""

from typing import Any

from signalbox_contract.structured_output.schema.vocabulary import reference_to
from signalbox_router.params.structured_output_check import definition_of_tool
from signalbox_router.parsers.call_rules import root_schema
from signalbox_router.prompt.chat.conversation import Conversation, Tool, ToolMode


def forced_schema(conversation: Conversation) -> dict[str, Any] | None:
    """Returns the schema of the whole answer if the tool choice forces a call; otherwise None.

    For a named tool it is the schema of its arguments, for any tool that of a list of {"name": ...,
    "parameters": ...}.
    """
    choice = conversation.tool_choice
    if choice.mode is not ToolMode.REQUIRED:
        return None
    may_call = {tool.name for tool in conversation.callable_tools}
    tools = {
        definition_of_tool(i): tool
        for i, tool in enumerate(conversation.tools)
        if tool.name in may_call
    }
    if choice.tool:
        tools = {name: tool for name, tool in tools.items() if tool.name == choice.tool}
        answer = _arguments(next(iter(tools)))
    else:
        calls = [_call_schema(name, tool) for name, tool in tools.items()]
        answer = {"type": "array", "minItems": 1, "items": {"anyOf": calls}}
        if not conversation.parallel_tool_calls:
            answer["maxItems"] = 1
    return {**answer, "$defs": {name: root_schema(name, tool) for name, tool in tools.items()}}


def _call_schema(name: str, tool: Tool) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": {"name": {"const": tool.name}, "parameters": _arguments(name)},
        "required": ["name", "parameters"],
        "additionalProperties": False,
    }


def _arguments(name: str) -> dict[str, Any]:
    """Returns a schema of arguments; they are an object even if the tool does not require it."""
    return {"type": "object", "$ref": reference_to(name)}

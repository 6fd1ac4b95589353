"""Converts the messages and tools of `LLM.chat`, OpenAI's dictionaries, to those of `Conversation`.

An error is a ValueError or TypeError that names the message and the field.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from signalbox_router.prompt.chat.conversation import Message, Tool, ToolCall, arguments_of

Turns = Sequence[Mapping[str, Any]]
"""Messages, each {"role": "system" | "user" | "assistant" | "tool", "content": text or text
parts}; an assistant's may have "tool_calls" and "reasoning", also as "reasoning_content", and a
tool's has "tool_call_id"."""

ROLES = ("system", "user", "assistant", "tool")
_REASONING = ("reasoning", "reasoning_content")
_FIELDS = {"role", "content", "name", "tool_calls", "tool_call_id", *_REASONING}


def messages_of(turns: Turns, *, field: str) -> list[Message]:
    """Returns the messages of one conversation."""
    if not isinstance(turns, Sequence) or isinstance(turns, str) or not turns:
        raise ValueError(f"{field}: a conversation is a list of at least one message")
    return [_message(turn, field=f"{field}[{i}]") for i, turn in enumerate(turns)]


def tools_of(tools: Sequence[Mapping[str, Any]] | None) -> list[Tool]:
    """Returns the tools that a template shows to the model."""
    return [_tool(tool, field=f"tools[{i}]") for i, tool in enumerate(tools or ())]


def _message(turn: object, *, field: str) -> Message:
    if not isinstance(turn, Mapping):
        raise TypeError(f'{field}: a message is {{"role": ..., "content": ...}}')
    if unserved := turn.keys() - _FIELDS:
        raise ValueError(f"{field}: {min(unserved)!r} is not served")
    role = turn.get("role")
    if role not in ROLES:
        raise ValueError(f"{field}: role is {role!r}; use one of {', '.join(ROLES)}")
    calls = turn.get("tool_calls") or ()
    content = turn.get("content")
    return Message(
        str(role),
        () if content is None else _content(content, field=field),
        tool_calls=[
            _tool_call(call, field=f"{field}.tool_calls[{i}]") for i, call in enumerate(calls)
        ],
        tool_call_id=_text(turn, "tool_call_id", field=field),
        name=_text(turn, "name", field=field),
        reasoning=next(filter(None, (_text(turn, name, field=field) for name in _REASONING)), ""),
    )


def _content(content: object, *, field: str) -> str | tuple[str, ...]:
    """Returns a text, or the texts of a list of {"type": "text", "text": ...}."""
    if isinstance(content, str):
        return content
    texts = []
    for part in content if isinstance(content, list | tuple) else [content]:
        given = dict(part) if isinstance(part, Mapping) else {}
        text = given.pop("text", None)
        if given != {"type": "text"} or not isinstance(text, str):
            raise ValueError(f"{field}: content must be a text or a list of text parts")
        texts.append(text)
    return tuple(texts)


def _tool_call(call: object, *, field: str) -> ToolCall:
    function = _function(call, field=field)
    assert isinstance(call, Mapping)
    arguments = function.get("arguments") or {}
    if isinstance(arguments, str):
        arguments = arguments_of(arguments)
    if not isinstance(arguments, Mapping):
        raise ValueError(f"{field}: arguments must be an object, or one as JSON text")
    return ToolCall(_text(call, "id", field=field), str(function["name"]), arguments)


def _tool(tool: object, *, field: str) -> Tool:
    function = _function(tool, field=field)
    parameters = function.get("parameters")
    if parameters is not None and not isinstance(parameters, Mapping):
        raise ValueError(f"{field}: parameters must be a JSON schema")
    description = _text(function, "description", field=field)
    return Tool(str(function["name"]), description, parameters)


def _function(value: object, *, field: str) -> Mapping[str, Any]:
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        form = '{"type": "function", "function": {"name": ...}}'
        raise ValueError(f"{field}: it must be of the form {form}")
    return function


def _text(fields: Mapping[str, Any], name: str, *, field: str) -> str:
    value = fields.get(name)
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{field}: {name} is {value!r}; it must be a text")
    return value or ""

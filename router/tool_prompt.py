"""Tells a model of tools in words, where its chat template has no place for them.

The tools go into the system message, earlier calls and results into the text of the messages around
them, in the way of the Hermes models: `tool_formats.HERMES` reads the answer. A call that the
client forces is not wrapped, see `tool_schema`.
"""

import dataclasses
import json
from collections.abc import Sequence

from router.conversation import Conversation, Message, ToolCall, ToolMode
from router.template_facts import TemplateFacts

_INTRODUCTION = "You may call functions. Each is described by one JSON object:"
_AUTO = """To call a function, write its name and arguments as a JSON object between tags:
<tool_call>
{"name": "a_function", "arguments": {"an_argument": "a value"}}
</tool_call>
Results come between <tool_response> tags. If no function helps, answer in plain words."""
_ONE_CALL = "Call no more than one function at a time."
_REQUIRED = """Answer with calls alone, as a JSON list:
[{"name": "a_function", "parameters": {"an_argument": "a value"}}]"""
_NAMED = "Answer with the arguments of a call of {name} alone, as a JSON object."


def forms_of(conversation: Conversation, facts: TemplateFacts) -> list[Conversation]:
    """Returns what to render: the first that the template accepts.

    That is the conversation itself, if its template has a place for all that it holds. Otherwise
    it is one without tools; then one without a system message of ours, which some templates refuse.
    """
    if not facts.takes_tools and conversation.offered_tools:
        told = dataclasses.replace(conversation, messages=_in_words(conversation.messages))
        prompt = tool_prompt(conversation)
        return [
            dataclasses.replace(told, tools=(), messages=_with_system(told.messages, prompt)),
            dataclasses.replace(told, tools=(), messages=_with_user(told.messages, prompt)),
        ]
    if not (facts.takes_tools or facts.takes_tool_calls) and any(
        map(_is_call, conversation.messages)
    ):
        return [dataclasses.replace(conversation, messages=_in_words(conversation.messages))]
    return [conversation]


def tool_prompt(conversation: Conversation) -> str:
    """Returns the description of the offered tools and of how to call them."""
    choice = conversation.tool_choice
    tools = [
        json.dumps(tool.variables(), ensure_ascii=False) for tool in conversation.offered_tools
    ]
    lines = [_INTRODUCTION, "<tools>", *tools, "</tools>"]
    if choice.tool:
        lines.append(_NAMED.format(name=choice.tool))
    else:
        lines.append(_REQUIRED if choice.mode is ToolMode.REQUIRED else _AUTO)
        if not conversation.parallel_tool_calls:
            lines.append(_ONE_CALL)
    return "\n".join(lines)


def _is_call(message: Message) -> bool:
    return bool(message.tool_calls) or message.role == "tool"


def _in_words(messages: Sequence[Message]) -> list[Message]:
    told: list[Message] = []
    follows_result = False
    for message in messages:
        if message.tool_calls:
            calls = [_call(call) for call in message.tool_calls]
            texts = [*([message.text] if message.text else []), *calls]
            message = Message(message.role, "\n".join(texts), name=message.name)
        is_result = message.role == "tool"
        if is_result:
            message = Message("user", f"<tool_response>\n{message.text}\n</tool_response>")
        if follows_result and message.role == "user":  # templates want roles in turn
            message = Message("user", f"{told.pop().text}\n{message.text}")
        told.append(message)
        follows_result = is_result or (follows_result and message.role == "user")
    return told


def _call(call: ToolCall) -> str:
    function = {"name": call.name, "arguments": call.arguments}
    return f"<tool_call>\n{json.dumps(function, ensure_ascii=False)}\n</tool_call>"


def _with_system(messages: Sequence[Message], prompt: str) -> list[Message]:
    if messages[0].role == "system":
        return [_prefixed(messages[0], f"{messages[0].text}\n\n{prompt}"), *messages[1:]]
    return [Message("system", prompt), *messages]


def _with_user(messages: Sequence[Message], prompt: str) -> list[Message]:
    for i, message in enumerate(messages):
        if message.role == "user":
            first = _prefixed(message, f"{prompt}\n\n{message.text}")
            return [*messages[:i], first, *messages[i + 1 :]]
    return [Message("user", prompt), *messages]


def _prefixed(message: Message, text: str) -> Message:
    return message._replace(content=text)

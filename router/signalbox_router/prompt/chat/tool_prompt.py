"""Describes tools to a model in words, if its chat template has no place for them.

The tools go into the system message, earlier calls and results into the text of the messages around
them, in the format of the Hermes models, which `tool_call_formats.HERMES` parses. A call that the
client forces has no tags, see `tool_call_schema`. Our words count as the template's, so that the
tags among them are control tokens if the model has such.
"""

import dataclasses
import hashlib
import json
import re
from collections.abc import Iterator, Sequence

from signalbox_router.prompt.chat.conversation import Conversation, Message, ToolCall, ToolMode
from signalbox_router.prompt.chat.provenance import MODEL, TEMPLATE, Text, concat, written_by
from signalbox_router.prompt.chat.template_facts import TemplateFacts

_SHORT_ID_CHARS = 9
_SHORT_ID = re.compile(f"[a-zA-Z0-9]{{{_SHORT_ID_CHARS}}}")
_INTRODUCTION = "You may call functions. Each is described by one JSON object:"
_AUTO = """To call a function, write its name and arguments as a JSON object between tags:
<tool_call>
{"name": "a_function", "arguments": {"an_argument": "a value"}}
</tool_call>
Results come between <tool_response> tags. If no function helps, answer in plain words."""
_ONE_CALL = "Call no more than one function at a time."
_REQUIRED = """Answer with calls alone, as a JSON list:
[{"name": "a_function", "parameters": {"an_argument": "a value"}}]"""
_NAMED = ("Answer with the arguments of a call of ", " alone, as a JSON object.")


def forms_of(conversation: Conversation, facts: TemplateFacts) -> Iterator[Conversation]:
    """Yields the forms to render in order; the first that the template accepts is used.

    The first form is the conversation itself if its template supports tools, with calls in words if
    it has no place for them; another has ids of calls as Mistral's templates want them, and another
    no text beside reasoning before calls, which GPT-OSS refuses. Otherwise the first has no tools,
    and the second has no system message of ours, which some templates refuse.
    """
    if not facts.takes_tools and conversation.offered_tools:
        told = dataclasses.replace(conversation, messages=_in_words(conversation.messages))
        prompt = tool_prompt(conversation)
        for with_prompt in (_with_system, _with_user):
            yield dataclasses.replace(told, tools=(), messages=with_prompt(told.messages, prompt))
        return
    if not (facts.takes_tools or facts.takes_tool_calls) and any(
        map(_is_call, conversation.messages)
    ):
        yield dataclasses.replace(conversation, messages=_in_words(conversation.messages))
        return
    if not facts.takes_tool_calls:  # they would be left out
        messages = [_with_calls_in_words(message) for message in conversation.messages]
        conversation = dataclasses.replace(conversation, messages=messages)
    yield conversation
    for changed in (_with_short_ids, _with_text_as_reasoning):
        messages = [changed(message) for message in conversation.messages]
        if messages != conversation.messages:
            yield dataclasses.replace(conversation, messages=messages)


def tool_prompt(conversation: Conversation) -> Text:
    """Returns the description of the offered tools and of how to call them."""
    choice = conversation.tool_choice
    tools = [
        json.dumps(tool.variables(), ensure_ascii=False) for tool in conversation.offered_tools
    ]
    lines = [_ours(_INTRODUCTION), _ours("<tools>"), *tools, _ours("</tools>")]
    if choice.tool:
        before, after = _NAMED
        lines.append(concat((_ours(before), choice.tool, _ours(after))))
    else:
        lines.append(_ours(_REQUIRED if choice.mode is ToolMode.REQUIRED else _AUTO))
        if not conversation.parallel_tool_calls:
            lines.append(_ours(_ONE_CALL))
    return _ours("\n").join(lines)


def _is_call(message: Message) -> bool:
    return bool(message.tool_calls) or message.role == "tool"


def _with_short_ids(message: Message) -> Message:
    """Returns the message with ids of nine letters and digits: others become the digits of a
    hash, the same in a call and its result."""
    if not _is_call(message):
        return message
    calls = tuple(call._replace(id=_short_id(call.id)) for call in message.tool_calls)
    result_of = _short_id(message.tool_call_id) if message.role == "tool" else ""
    return message._replace(tool_calls=calls, tool_call_id=result_of)


def _short_id(call_id: str) -> str:
    if _SHORT_ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:_SHORT_ID_CHARS]


def _with_text_as_reasoning(message: Message) -> Message:
    """Returns the message with its text in its reasoning, if it has both before calls."""
    if not (message.tool_calls and message.reasoning and message.text):
        return message
    reasoning = "\n".join((message.reasoning, *message.parts))
    return message._replace(content=(), reasoning=reasoning)


def _with_calls_in_words(message: Message) -> Message:
    if not message.tool_calls:
        return message
    calls = [_call(call) for call in message.tool_calls]
    texts = [*([message.text] if message.text else []), *calls]
    return message._replace(content=_ours("\n").join(texts), tool_calls=())


def _in_words(messages: Sequence[Message]) -> list[Message]:
    told: list[Message] = []
    follows_result = False
    for message in messages:
        message = _with_calls_in_words(message)
        is_result = message.role == "tool"
        if is_result:
            message = Message("user", _tagged("tool_response", message.text))
        if follows_result and message.role == "user":  # templates require alternating roles
            message = Message("user", _ours("\n").join((told.pop().text, message.text)))
        told.append(message)
        follows_result = is_result or (follows_result and message.role == "user")
    return told


def _call(call: ToolCall) -> Text:
    function = {"name": call.name, "arguments": call.arguments}
    return _tagged("tool_call", written_by(MODEL, json.dumps(function, ensure_ascii=False)))


def _tagged(name: str, text: str) -> Text:
    return concat((_ours(f"<{name}>\n"), text, _ours(f"\n</{name}>")))


def _ours(text: str) -> Text:
    return written_by(TEMPLATE, text)


def _with_system(messages: Sequence[Message], prompt: Text) -> list[Message]:
    if messages[0].role == "system":
        return [_replaced(messages[0], messages[0].text, prompt), *messages[1:]]
    return [Message("system", prompt), *messages]


def _with_user(messages: Sequence[Message], prompt: Text) -> list[Message]:
    for i, message in enumerate(messages):
        if message.role == "user":
            first = _replaced(message, prompt, message.text)
            return [*messages[:i], first, *messages[i + 1 :]]
    return [Message("user", prompt), *messages]


def _replaced(message: Message, *texts: Text) -> Message:
    return message._replace(content=_ours("\n\n").join(texts))

"""Grammars of answers that conform to a structured output or are tool calls."""

import json
import re
from collections.abc import Iterable

from signalbox_contract.structured_output.constraint_codec import StructuredOutput
from signalbox_contract.structured_output.grammar import WHITESPACE
from signalbox_router.parsers.tool_call_formats import ToolCallFormat
from signalbox_router.parsers.tool_call_reader import format_of
from signalbox_router.prompt.chat.conversation import Conversation, ToolMode
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_ARGUMENTS = ("arguments", "parameters")
"""Keys under which models write the arguments of a JSON call."""


def with_calls(
    constraint: StructuredOutput,
    conversation: Conversation,
    model: ServedModel,
    *,
    setting: str,
    takes_tools: bool,
) -> StructuredOutput:
    """Returns the constraint for an answer in which the model may call tools instead.

    Args:
        setting: one of `tool_call_formats.CHOICES`.
        takes_tools: True if the conversation's template renders tools.
    """
    may_call = conversation.offered_tools and conversation.tool_choice.mode is ToolMode.AUTO
    if not may_call:
        return constraint
    format_ = format_of(conversation, model, setting=setting, takes_tools=takes_tools)
    if format_ is None:
        return constraint
    names = [tool.name for tool in conversation.offered_tools]
    return ("or_calls", _calls(format_, names, model.tokenizer.vocabulary), *constraint)


def _calls(format_: ToolCallFormat, tool_names: Iterable[str], vocabulary: Vocabulary) -> str:
    """Returns Lark rules for `calls`: any text after the format's marker, or JSON calls where
    those need none.

    A marker may be a token, as text or special. Other special tokens may not follow it.
    """
    alternatives, rules = [], []
    if format_.start:
        starts, markers = (
            "".join(f" | <[{token_id}]>" for token_id in vocabulary.ids_of(tokens))
            for tokens in ([format_.start], format_.markers)
        )
        alternatives.append("marked")
        rules.append(f"marked: ({json.dumps(format_.start)}{starts}) (ANY{markers})*")
        rules.append("ANY: /(?s:.+)/")
    if format_.is_bare:
        between = re.escape(format_.separators)
        alternatives.append(f"call (/[ \\n{between}]+/ call)*")
        rules.append(f"call: %json {json.dumps(_call_schema(tool_names))}")
    return "\n".join([f"calls: {' | '.join(alternatives)}", *rules])


def _call_schema(tool_names: Iterable[str]) -> dict[str, object]:
    name = {"enum": [*tool_names]}
    calls = [
        {
            "type": "object",
            "properties": {"name": name, key: {"type": "object"}},
            "required": ["name", key],
            "additionalProperties": False,
        }
        for key in _ARGUMENTS
    ]
    return {"anyOf": calls, "x-guidance": {"whitespace_pattern": WHITESPACE}}

"""Grammars of answers that conform to a structured output or are tool calls."""

from signalbox_contract.structured_output.constraint_codec import StructuredOutput
from signalbox_router.parsers.tool_call_reader import format_of
from signalbox_router.prompt.chat.conversation import Conversation, ToolMode
from signalbox_router.prompt.served_model import ServedModel


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
    calls = format_.grammar(conversation.callable_tools, vocabulary=model.tokenizer.vocabulary)
    return ("or_calls", calls, *constraint)

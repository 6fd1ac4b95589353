"""What constrains an answer beside its structured output, and where that applies.

Reasoning before an answer is free, calls may take the place of a structured output, and those of
strict tools conform to their schemas from their marker on. Where a marker is a token of the model,
the worker looks for it and free text costs nothing. Where it is a text, free text is a part of the
grammar.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_router.params.structured_output_check import DEFINITION_OF_TOOL, definition_of_tool
from signalbox_router.parsers.call_rules import literal, marker
from signalbox_router.parsers.reasoning_reader import Reasoning
from signalbox_router.parsers.tool_call_format import AnswerFormat, ToolCallFormat
from signalbox_router.prompt.chat.conversation import Conversation, ToolMode
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary


class AnswerConstraint(NamedTuple):
    """Rules in Lark of the text that is constrained, and where it is."""

    rules: str = ""
    """They begin at `start`; `@answer` is the structured output, or forced calls where the answer
    has no format. Empty: that alone, if any."""
    scope: Scope = WHOLE


NOTHING_MORE = AnswerConstraint()
ANSWER = "@answer"
"""The structured output in the first rule."""
_TOOL = re.compile(r"tools\[(\d+)\]")
_BREAKS = r"BREAKS: /\n{1,2}/"
"""What models write between their reasoning and the answer; no part of either."""


def answer_constraint(
    conversation: Conversation,
    vocabulary: Vocabulary,
    reasoning: Reasoning | None,
    find_format: Callable[[], ToolCallFormat | None],
    *,
    is_constrained: bool,
) -> AnswerConstraint:
    """Returns what constrains the answer of a conversation. Raises InvalidArgument for a budget
    that cannot be kept.

    Args:
        find_format: returns that of the answer, if it has one.
        is_constrained: True if the answer has a structured output.
    """
    mode = conversation.tool_choice.mode
    tools = () if mode is ToolMode.NONE else conversation.callable_tools
    is_forced = mode is ToolMode.REQUIRED
    is_limited = bool(conversation.tool_choice.allowed) or any(tool.strict for tool in tools)
    has_calls = is_forced or bool(tools and (is_constrained or is_limited))
    budget = conversation.thinking.budget
    if not (is_constrained or has_calls) and budget is None:
        return NOTHING_MORE
    format_ = find_format()
    calls = _calls(format_, conversation, vocabulary) if format_ is not None and has_calls else ""
    if isinstance(format_, AnswerFormat):
        if budget is not None:
            raise _no_budget(budget)
        if is_constrained or is_forced:
            return _of_whole(format_, calls, vocabulary, is_forced=is_forced)
    openings = () if format_ is None else format_.opening
    found = vocabulary.tokens_of(openings).values()
    markers = tuple(token_id for token_id in found if f"<[{token_id}]>" in calls)
    scope: Scope | None = WHOLE
    if reasoning is not None:
        scope = _scope(reasoning, vocabulary, budget, markers)
    if calls and is_forced:
        return _of_answer("calls", calls, reasoning, scope, vocabulary)
    if is_constrained or is_forced:
        answer = f"({ANSWER} | calls)" if calls else ANSWER
        return _of_answer(answer, calls, reasoning, scope, vocabulary)
    if scope is None:
        return NOTHING_MORE
    if markers:
        scope = replace(scope, marker_token_ids=markers, is_repeated=True, is_required=False)
        beside = format_.beside(vocabulary) if format_ is not None else ""
        start = f"calls | {beside}" if beside else "calls"
        return AnswerConstraint(f"start: {start}\n{calls}", scope)
    return AnswerConstraint(_after_text(calls, openings, vocabulary), scope)


def _no_budget(budget: int) -> InvalidArgument:
    allowed = "no budget, since no token of the model begins and ends its reasoning alone"
    return InvalidArgument("thinking.budget", budget, allowed)


def _scope(
    reasoning: Reasoning, vocabulary: Vocabulary, budget: int | None, markers: tuple[int, ...]
) -> Scope | None:
    """Returns a scope after the reasoning; None if that cannot be told by its tokens."""
    format_ = reasoning.format_
    start, end = vocabulary.token_id(format_.start), vocabulary.token_id(format_.end)
    if end is None or (start is None and reasoning.may_begin):
        if budget is not None:
            raise _no_budget(budget)
        return None
    return Scope(
        is_open=reasoning.is_open,
        opening_token_ids=() if start is None or not reasoning.may_begin else (start,),
        closing_token_ids=(end,),
        max_reasoning_tokens=budget,
        marker_token_ids=markers,
    )


def _calls(format_: ToolCallFormat, conversation: Conversation, vocabulary: Vocabulary) -> str:
    """Returns the rules of the calls that may be made; those that must be made are all strict."""
    tools, named = conversation.callable_tools, conversation.tool_choice.tool
    if conversation.tool_choice.mode is ToolMode.REQUIRED:
        tools = [tool._replace(strict=True) for tool in tools if named in ("", tool.name)]
    is_parallel = conversation.parallel_tool_calls and not named
    positions = {tool.name: i for i, tool in enumerate(conversation.tools)}
    places = [positions[tool.name] for tool in tools]  # errors name a tool by its place among all
    try:
        calls = format_.grammar(tools, is_parallel=is_parallel, vocabulary=vocabulary)
    except InvalidArgument as error:
        field = _TOOL.sub(lambda found: f"tools[{places[int(found[1])]}]", error.field)
        raise InvalidArgument(field, None, reason=error.description) from None
    if places == [*range(len(places))]:
        return calls
    moved = dict(enumerate(places))
    return DEFINITION_OF_TOOL.sub(
        lambda found: definition_of_tool(moved.get(int(found[1]), int(found[1]))), calls
    )


def _of_whole(
    format_: AnswerFormat, calls: str, vocabulary: Vocabulary, *, is_forced: bool
) -> AnswerConstraint:
    """Returns what an answer is in a format of its own: reasoning, which is free, and then calls or
    a structured output. Each begins with a marker, also where the sequence does."""
    answer = [] if is_forced else [format_.answer(vocabulary, ANSWER)]
    parts = [format_.reasoning(vocabulary), *(["calls"] if calls else []), *answer]
    rules = f"start: {' | '.join(parts)}\n{calls}"
    found = vocabulary.tokens_of(format_.opening).values()
    markers = tuple(token_id for token_id in found if f"<[{token_id}]>" in rules)
    return AnswerConstraint(rules, Scope(marker_token_ids=markers, is_repeated=True))


def _of_answer(
    answer: str,
    calls: str,
    reasoning: Reasoning | None,
    scope: Scope | None,
    vocabulary: Vocabulary,
) -> AnswerConstraint:
    """Returns what is around a structured output or forced calls: calls in its place, and reasoning
    before."""
    if scope is not None and (reasoning is None or not (reasoning.is_open or answer == "calls")):
        return AnswerConstraint(f"start: {answer}\n{calls}" if calls else "", scope)
    if scope is not None:  # where there may be no reasoning, line breaks would be of the answer
        return AnswerConstraint(f"start: BREAKS? {answer}\n{_BREAKS}\n{calls}", scope)
    assert reasoning is not None
    start, end = reasoning.format_.start, reasoning.format_.end
    if (end_token := vocabulary.token_id(end)) is not None:
        thought = f"thought: ANY* <[{end_token}]>\nANY: /(?s:.+)/"
    else:
        thought = f"thought[suffix={literal(end)}]: /(?s:.*)/"
    before = "thought BREAKS?" if reasoning.is_open else ""
    if reasoning.may_begin:
        before = f"({marker(start, vocabulary)} thought BREAKS?)?"
    return AnswerConstraint(f"start: {before} {answer}\n{thought}\n{_BREAKS}\n{calls}", WHOLE)


def _after_text(calls: str, openings: tuple[str, ...], vocabulary: Vocabulary) -> str:
    """Returns rules of free text with calls whose one opening is a text; "" if none can be made."""
    if len(openings) != 1 or any(one in openings[0] for one in vocabulary.special_tokens.values()):
        return ""
    opening = literal(openings[0])
    lines = [
        line if ": %json " in line else line.replace(opening, "opened")
        for line in calls.splitlines()
    ]
    if not any("opened" in line for line in lines):
        return ""
    excluded = re.escape(openings[0]).replace("/", r"\/")
    return "\n".join(
        (
            "start: calls* REST?",
            f"opened[suffix={opening}]: /(?s:.*)/",
            f"REST: /(?s:.+)/ & ~/(?s:.*){excluded}(?s:.*)/",
            *lines,
        )
    )

"""Builds the constraint of an answer around its structured output, and finds where it applies.

Reasoning before an answer is free, calls may take the place of a structured output, and those of
strict tools conform to their schemas from their opening on. Where each opening has a token of the
model, the worker looks for that and free text costs nothing. Otherwise free text is a part of the
grammar.
"""

import json
import re
from collections.abc import Iterable, Sequence
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
_OPENING = re.compile(r"^opening_(\d+): (.*)$", re.MULTILINE)
"""A rule of `call_rules.opening_rules`."""
_FROM_TOKEN = re.compile(r"<\[(\d+)\]>.*")
_TOOL = re.compile(r"tools\[(\d+)\]")
_BREAKS = r"BREAKS: /\n{1,2}/"
"""Line breaks between the reasoning and the answer; no part of either."""


def answer_constraint(
    conversation: Conversation,
    vocabulary: Vocabulary,
    reasoning: Reasoning | None,
    format_: ToolCallFormat | None,
    *,
    is_constrained: bool,
) -> AnswerConstraint:
    """Returns what constrains the answer of a conversation. Raises InvalidArgument for a budget
    that cannot be kept.

    Args:
        format_: that of the answer, if it has one.
        is_constrained: True if the answer has a structured output.
    """
    is_forced = conversation.tool_choice.mode is ToolMode.REQUIRED
    has_calls = is_forced or _constrains_calls(conversation, is_constrained=is_constrained)
    budget = conversation.thinking.budget
    if not (is_constrained or has_calls) and budget is None:
        return NOTHING_MORE
    calls = _calls(format_, conversation, vocabulary) if format_ is not None and has_calls else ""
    if isinstance(format_, AnswerFormat) and _has_all(format_, vocabulary):
        answer = "" if is_forced else ANSWER if is_constrained else None
        return _of_whole(format_, conversation, vocabulary, calls=calls, answer=answer)
    scope = _scope(reasoning, vocabulary, budget, calls) if reasoning is not None else WHOLE
    if is_forced and calls:
        return _of_answer("calls", calls, reasoning, scope, vocabulary)
    if is_forced or is_constrained:
        answer = f"({ANSWER} | calls)" if calls else ANSWER
        return _of_answer(answer, calls, reasoning, scope, vocabulary)
    return _of_strict_calls(calls, scope or WHOLE)


def _constrains_calls(conversation: Conversation, *, is_constrained: bool) -> bool:
    """Returns whether calls that the model decides to make conform to something."""
    if conversation.tool_choice.mode is ToolMode.NONE:
        return False
    tools = conversation.callable_tools
    is_limited = bool(conversation.tool_choice.allowed) or any(tool.strict for tool in tools)
    return bool(tools) and (is_constrained or is_limited)


def _has_all(format_: ToolCallFormat, vocabulary: Vocabulary) -> bool:
    return len(vocabulary.tokens_of(format_.markers)) == len(format_.markers)


def _no_budget(budget: int) -> InvalidArgument:
    allowed = "no budget, since no token of the model begins and ends its reasoning alone"
    return InvalidArgument("thinking.budget", budget, allowed)


def _scope(
    reasoning: Reasoning, vocabulary: Vocabulary, budget: int | None, calls: str
) -> Scope | None:
    """Returns a scope after the reasoning, which calls end that open with a token; None if the
    reasoning cannot be told by its tokens."""
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
        marker_token_ids=_tokens_of(_leading(_openings(calls))),
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


class _Opening(NamedTuple):
    """The rule of a text that opens calls."""

    rule: str
    before_token: str
    token_id: int | None
    """The first token in it, if there is one."""
    from_token: str

    @property
    def text(self) -> str:
        """The text, if no part of it is a token."""
        return str(json.loads(self.rule))


def _openings(calls: str) -> list[_Opening]:
    """Returns the openings of the rules of calls."""
    found = [one[2] for one in _OPENING.finditer(calls)]
    tokens = [_FROM_TOKEN.search(rule) for rule in found]
    return [
        _Opening(rule, rule, None, "")
        if token is None
        else _Opening(rule, rule[: token.start()], int(token[1]), token[0])
        for rule, token in zip(found, tokens, strict=True)
    ]


def _leading(openings: Iterable[_Opening]) -> list[_Opening]:
    """Returns those that are a token from their beginning on; others open no call in reasoning."""
    return [one for one in openings if not one.before_token]


def _tokens_of(openings: Iterable[_Opening]) -> tuple[int, ...]:
    ids = (one.token_id for one in openings)
    return tuple(dict.fromkeys(token_id for token_id in ids if token_id is not None))


def _of_whole(
    format_: AnswerFormat,
    conversation: Conversation,
    vocabulary: Vocabulary,
    *,
    calls: str,
    answer: str | None,
) -> AnswerConstraint:
    """Returns what an answer is in a format of its own: messages, of which each has a header.

    Args:
        answer: the text of the answer; "" if calls take its place, None if it is free.
    """
    budget = conversation.thinking.budget
    end = vocabulary.token_id(format_.ends_of_reasoning[0])
    found = [vocabulary.token_id(one) for one in format_.reasoning]
    header = tuple(token_id for token_id in found if token_id is not None)
    is_known = end is not None and len(header) == len(found)
    if budget is not None and not is_known:
        raise _no_budget(budget)
    start = format_.answer(vocabulary, calls="calls" if calls else "", text=answer)
    scope = Scope(
        closing_token_ids=(end,) if is_known and end is not None else (),
        max_reasoning_tokens=budget,
        reasoning_token_ids=header if is_known else (),
        marker_token_ids=tuple(vocabulary.tokens_of(format_.opening).values()),
        is_repeated=True,
        is_leading=conversation.add_generation_prompt,
        is_required=answer is not None,
    )
    return AnswerConstraint(f"start: {start}\n{calls}", scope)


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


def _of_strict_calls(calls: str, scope: Scope) -> AnswerConstraint:
    """Returns what constrains calls in free text, from their openings on."""
    openings = _openings(calls)
    texts = [one.text for one in openings if one.token_id is None]
    if not openings:
        return NOTHING_MORE if scope.max_reasoning_tokens is None else AnswerConstraint("", scope)
    if not texts and (scope is WHOLE or _leading(openings) == openings):
        scope = replace(scope, is_repeated=True, is_leading=False, is_required=False)
        rules = (
            f"start: calls\n{_with_openings(calls, [f': {one.from_token}' for one in openings])}"
        )
        return AnswerConstraint(rules, replace(scope, marker_token_ids=_tokens_of(openings)))
    if scope is not WHOLE:
        scope = replace(scope, is_required=False)  # its markers are the leading ones
    excluded = "|".join(re.escape(one).replace("/", r"\/") for one in texts) or r"[^\s\S]"
    after_text = [
        f"[suffix={one.rule}]: /(?s:.*)/" if one.token_id is None else f": TEXT? {one.from_token}"
        for one in openings
    ]
    return AnswerConstraint(
        "start: calls* TEXT?\n"
        f"TEXT: /(?s:.+)/ & ~/(?s:.*)({excluded})(?s:.*)/\n"
        f"{_with_openings(calls, after_text)}",
        scope,
    )


def _with_openings(calls: str, rules: Sequence[str]) -> str:
    """Returns rules of calls with other rules of their openings."""
    return _OPENING.sub(lambda found: f"opening_{found[1]}{rules[int(found[1])]}", calls)

"""Harmony, whose markup is of all of an answer."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import sentinel

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.grammar import compile_grammar
from signalbox_contract.structured_output.scope import Scope
from signalbox_router.parsers.answer_constraint import answer_constraint
from signalbox_router.parsers.tool_call_formats import named
from signalbox_router.parsers.tool_call_reader import format_of_answer, reader_of
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    Message,
    Thinking,
    ToolChoice,
    ToolMode,
)
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta
from tests.router.fakes import make_model
from tests.router.parsers.format_examples import TOOLS
from tests.router.parsers.test_answer_constraint import conforms_in_steps, grammar_of
from tests.router.parsers.test_formats import make_tokenizer, tokenizer_of

HARMONY = named("openai")
ASKED = [Message("user", "Hi")]
HEADERS = (
    "<|channel|>commentary to=functions.{} <|constrain|>json",
    " to=functions.{}<|channel|>commentary json",
    " to=functions.{}<|channel|>commentary",
)
"""Those of a call."""


def test_reasoning_and_text_are_told_apart_without_tools() -> None:
    asked = Conversation(messages=ASKED, chat_template="<|start|><|channel|><|call|>")
    model = make_model()
    format_ = format_of_answer(asked, model, setting="auto", takes_tools=False)
    reader = reader_of(format_, asked, model)
    assert reader is not None
    text = "<|channel|>analysis<|message|>Hm.<|end|><|channel|>final<|message|>Yes"
    delta = Delta(index=0, text=text, token_ids=[7, 8])
    reader.read(Update(sentinel.request, [delta], None))
    assert (delta.reasoning, delta.text, reader.num_reasoning_tokens) == ("Hm.", "Yes", 2)
    for setting in ("none", "hermes"):
        assert format_of_answer(asked, model, setting=setting, takes_tools=False) is None
    assert reader_of(None, asked, model) is None


@pytest.mark.parametrize("num_together", [1, 2, 5, 100])
def test_reasoning_tokens_are_those_of_its_messages_however_they_arrive(num_together: int) -> None:
    vocabulary, tokenizer = make_tokenizer([*HARMONY.markers, "analysis"])
    ids = [vocabulary.token_id(one) for one in (*HARMONY.reasoning, *HARMONY.ends_of_reasoning)]
    channel, analysis, message, end, *_ = (one for one in ids if one is not None)
    of_model = SimpleNamespace(vocabulary=vocabulary, chat_template=None)
    model: Any = SimpleNamespace(tokenizer=of_model)
    reader = reader_of(HARMONY, Conversation(messages=ASKED), model)
    assert reader is not None
    of_reasoning = [channel, analysis, message, *tokenizer.tokenize_str("Hm to="), end]
    tokens = [*of_reasoning, channel, *tokenizer.tokenize_str("final"), message, 7, 8, end]
    tokens += of_reasoning
    for first in range(0, len(tokens), num_together):
        delta = Delta(index=0, text="", token_ids=tokens[first : first + num_together])
        reader.read(Update(sentinel.request, [delta], None))
    assert reader.num_reasoning_tokens == 2 * len(tokenizer.tokenize_str("Hm to="))


def test_a_channel_without_a_call_is_free_beside_strict_calls() -> None:
    vocabulary, tokenizer = tokenizer_of("openai", has_markers=True)
    asked = Conversation(messages=ASKED, tools=TOOLS)
    rules, scope = answer_constraint(asked, vocabulary, None, HARMONY, is_constrained=False)
    markers = vocabulary.tokens_of(("<|channel|>", "<|start|>")).values()
    assert scope == Scope(marker_token_ids=tuple(markers), is_repeated=True, is_required=False)

    def conforms(text: str) -> bool:
        matcher = compile_grammar(("rules", rules), tokenizer).deep_copy()
        tokens = tokenizer.tokenize_str(text, parse_special=True)
        return all(map(matcher.consume_token, tokens)) and matcher.is_accepting()

    for start in ("", "<|start|>assistant"):
        for header in ("analysis", "commentary", "final", "final <|constrain|>json"):
            assert conforms(f"{start}<|channel|>{header}<|message|>")
        for header in HEADERS:
            call = f"{start}{header.format('get_weather')}<|message|>{{}}<|call|>"
            assert conforms(call.replace("{}", '{"city": "Paris"}')), call
            assert not conforms(call.replace("{}", '{"town": "Paris"}')) and not conforms(call)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "Ask to=functions.now.<|end|><|channel|>commentary<|message|>{}",
            "Ask to=functions.now.{}",
        ),
        ("to=functions.now<|channel|>commentary<|message|>{}<|call|>", "to=functions.now{}"),
    ],
)
def test_a_recipient_within_a_text_makes_no_call(text: str, said: str) -> None:
    """The grammar of strict calls begins with a message, not within its text."""
    parser = HARMONY.parser(TOOLS)
    parsed = [parser.push(f"<|channel|>final<|message|> {text}"), parser.flush()]
    assert "".join(one.text for one in parsed) == f" {said}"
    assert parser.num_calls == 0


@pytest.mark.parametrize("mode", [None, ToolMode.AUTO, ToolMode.REQUIRED])
def test_a_budget_bounds_all_messages_of_reasoning_together(mode: ToolMode | None) -> None:
    vocabulary, tokenizer = tokenizer_of("openai", has_markers=True)
    asked = Conversation(messages=ASKED, thinking=Thinking(budget=9))
    with pytest.raises(InvalidArgument, match="budget"):  # "analysis" is no token
        answer_constraint(asked, vocabulary, None, HARMONY, is_constrained=False)
    vocabulary, tokenizer = make_tokenizer([*HARMONY.markers, "analysis"])
    choice = ToolChoice(mode or ToolMode.AUTO)
    asked = replace(asked, tools=TOOLS if mode else (), tool_choice=choice)
    found = answer_constraint(asked, vocabulary, None, HARMONY, is_constrained=False)
    grammar = grammar_of(found, tokenizer)
    head, start = "<|channel|>analysis<|message|>", "<|end|><|start|>assistant"
    end = "<|channel|>final<|message|>Well."
    if mode is not None:
        end = " to=functions.now<|channel|>commentary json<|message|>{}<|call|>"
    conforms = partial(conforms_in_steps, grammar, tokenizer)
    assert all(conforms(f"{head}{'x' * length}{start}{end}") for length in (0, 8, 9))
    assert conforms(f"{head}xxxx{start}{head}xxxxx{start}{end}")
    assert conforms(f"{head}xxxx<|end|>{end}")
    assert not conforms(f"{head}xxxxxxxxxx{start}{end}")
    assert not conforms(f"{head}xxxx{start}{head}xxxxxx{start}{end}")
    assert not conforms(f"{head}xxxxxxxxx{start}{head}{start}{end}")  # none is left
    assert not conforms(f"{head}xxxxxxxxx<|end|>Well.")
    nothing = replace(asked, thinking=Thinking(budget=0))
    found = answer_constraint(nothing, vocabulary, None, HARMONY, is_constrained=False)
    grammar = grammar_of(found, tokenizer)
    assert conforms_in_steps(grammar, tokenizer, end)
    assert not conforms_in_steps(grammar, tokenizer, f"{head}{start}{end}")


@pytest.mark.parametrize("is_forced", [False, True])
def test_what_is_constrained_follows_reasoning_in_a_channel_of_its_own(is_forced: bool) -> None:
    vocabulary, tokenizer = tokenizer_of("openai", has_markers=True)
    mode = ToolMode.REQUIRED if is_forced else ToolMode.AUTO
    asked = Conversation(messages=ASKED, tools=TOOLS, tool_choice=ToolChoice(mode))
    rules, scope = answer_constraint(asked, vocabulary, None, HARMONY, is_constrained=not is_forced)
    markers = vocabulary.tokens_of(("<|channel|>", "<|start|>")).values()
    assert scope == Scope(marker_token_ids=tuple(markers), is_repeated=True)
    constraint = ("rules", rules) if is_forced else ("rules", rules, "regex", "[0-9]+")
    matcher = compile_grammar(constraint, tokenizer)

    def conforms(text: str) -> bool:
        copy = matcher.deep_copy()
        tokens = tokenizer.tokenize_str(text, parse_special=True)
        return all(map(copy.consume_token, tokens)) and copy.is_accepting()

    assert conforms("<|channel|>analysis<|message|>")
    for header in ("final", "final <|constrain|>json"):
        answer = f"<|channel|>{header}<|message|>12<|return|>"
        assert conforms(answer) is not is_forced
        assert not conforms(answer.replace("12", "x")) and not conforms(answer[:-10])
    for header in HEADERS:
        call = f"{header.format('now')}<|message|>{{}}<|call|>"
        assert conforms(call) and not conforms(call.replace("now", "later"))

"""What conforms beside tools and after reasoning, and calls as their parsers read them."""

import json
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from llguidance import LLTokenizer

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.grammar import compile_grammar
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_router.parsers.answer_constraint import (
    NOTHING_MORE,
    AnswerConstraint,
    answer_constraint,
)
from signalbox_router.parsers.reasoning_formats import THINK, ReasoningFormat
from signalbox_router.parsers.reasoning_reader import Reasoning
from signalbox_router.parsers.tool_call_formats import HERMES, NONE
from signalbox_router.parsers.tool_call_reader import format_of
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    FreeText,
    Message,
    Thinking,
    Tool,
    ToolChoice,
    ToolMode,
    custom_tool,
)
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from signalbox_worker.sampling.compiled_grammar import CompiledGrammar, Grammar
from tests.router.fakes import BOS, EOS, POOL, make_files, make_model, token
from tests.router.parsers import format_examples
from tests.router.parsers.test_formats import make_tokenizer, tokenizer_of

TOOLS = (Tool("get_weather"), Tool("add"))
CONSTRAINTS = {
    (
        "json_schema",
        '{"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}',
    ): '{"a": 1}',
    ("json_object",): '{"name": "nobody"}',
    ("regex", "[0-9]+"): "12",
    ("choice", "yes", "<tool"): "<tool",
    ("grammar", 'root ::= "[" "x"* "]"'): "[xx]",
    ("grammar", '%ignore / +/\nstart: "f" ("," "f")*'): "f, f",
}
CALL = '{"name": "add", "arguments": {"a": 1}}'
PARAMETERS = CALL.replace("arguments", "parameters")
CALLS = {
    HERMES: [f"<tool_call>\n{CALL}\n</tool_call>"],
    "mistral": [f"[TOOL_CALLS][{CALL}]"],
    "llama3_json": [
        PARAMETERS,
        f"{PARAMETERS}; {PARAMETERS}",
        f"<|python_tag|>{PARAMETERS}",
    ],
    "json": [CALL],
}
CALLS_OF_TOKENS = {"mistral": ['[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{"a": 1}']}
"""Calls as a model writes them whose vocabulary has the markers, where that differs."""
NO_CALLS = [
    "Let me see.",
    '{"name": "other", "arguments": {}}',
    '{"name": "add", "x": 1}',
    "<tool_",
]
MARKERS = {BOS: "<|python_tag|>", EOS: EOS, "<|im_start|>": "[TOOL_CALLS]", "<|im_end|>": "[ARGS]"}
"""Special tokens of the test, by their names in the tokenizer of other tests."""
TEMPLATE = "{{ tools }}{{ messages }}"


@cache
def model_of(*, has_markers: bool) -> ServedModel:
    files = make_files(chat_template=TEMPLATE)
    text = files["tokenizer.json"].decode()
    for name, marker in MARKERS.items() if has_markers else ():
        text = text.replace(json.dumps(name)[1:-1], marker)
    files["tokenizer.json"] = text.encode()
    model = make_model()
    return make_model(tokenizer=Tokenizer(files, vocab_size=model.vocab_size, pool=POOL))


def conversation(mode: ToolMode = ToolMode.AUTO, **fields: Any) -> Conversation:
    fields = {"tools": TOOLS, "tool_choice": ToolChoice(mode)} | fields
    return Conversation(messages=[Message("user", "Hi")], **fields)


OPEN, MAY_REASON = Reasoning(THINK, True, False, False), Reasoning(THINK, False, False, True)


def constrain(
    model: ServedModel,
    asked: Conversation,
    constraint: tuple[str, ...] = (),
    *,
    setting: str = HERMES,
    reasoning: Reasoning | None = None,
) -> tuple[tuple[str, ...], Scope]:
    """Returns the constraint of the worker, and its scope."""
    rules, scope = answer_constraint(
        asked,
        model.tokenizer.vocabulary,
        reasoning,
        format_of(asked, model, setting=setting, takes_tools=True),
        is_constrained=bool(constraint),
    )
    return ("rules", rules, *constraint) if rules else constraint, scope


def matching(model: ServedModel, constraint: tuple[str, ...]) -> Callable[[str], bool]:
    """Returns whether a text conforms."""
    text = model.tokenizer.files["tokenizer.json"].decode()
    matcher = compile_grammar(constraint, LLTokenizer(text, eos_token=token(EOS)))

    def conforms(text: str) -> bool:
        ids = model.tokenizer.encode_blocking(text, add_special_tokens=False)
        copy = matcher.deep_copy()
        return bool(
            copy.validate_tokens(ids) == len(ids)
            and copy.consume_tokens(ids)
            and copy.is_accepting()
        )

    return conforms


@pytest.mark.parametrize("has_markers", [False, True])
@pytest.mark.parametrize("setting", CALLS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_an_answer_conforms_or_calls(
    constraint: tuple[str, ...], setting: str, has_markers: bool
) -> None:
    model = model_of(has_markers=has_markers)
    wrapped, scope = constrain(model, conversation(), constraint, setting=setting)
    assert scope == WHOLE
    conforms = matching(model, wrapped)
    assert conforms(CONSTRAINTS[constraint])
    for text in CALLS_OF_TOKENS.get(setting, CALLS[setting]) if has_markers else CALLS[setting]:
        assert conforms(text)
        format_ = format_of(conversation(), model, setting=setting, takes_tools=True)
        assert format_ is not None
        parser = format_.parser(TOOLS)
        assert parser.push(text).text + parser.flush().text == ""
        assert parser.num_calls == text.count("add")
    assert [text for text in NO_CALLS if conforms(text) and constraint != ("json_object",)] == []


@pytest.mark.parametrize(
    ("mode", "setting"),
    [(ToolMode.REQUIRED, NONE), (ToolMode.NONE, HERMES), (ToolMode.AUTO, NONE)],
)
def test_a_constraint_stays_where_no_call_may_take_its_place(mode: ToolMode, setting: str) -> None:
    constraint = ("json_object",)
    found = constrain(model_of(has_markers=False), conversation(mode), constraint, setting=setting)
    assert found == (constraint, WHOLE)


@pytest.mark.parametrize("with_tools", [False, True])
@pytest.mark.parametrize(
    ("reasoning", "before"),
    [
        (OPEN, ["Well.</think>", "</think>"]),
        (MAY_REASON, ["", "<think>Is it {} or <tool_call>?</think>"]),
    ],
)
def test_reasoning_without_tokens_of_its_own_is_a_part_of_the_grammar(
    reasoning: Reasoning, before: list[str], with_tools: bool
) -> None:
    model = model_of(has_markers=False)
    asked = conversation(ToolMode.AUTO if with_tools else ToolMode.NONE)
    wrapped, scope = constrain(model, asked, ("regex", "[0-9]+"), reasoning=reasoning)
    assert scope == WHOLE
    conforms = matching(model, wrapped)
    assert all(conforms(f"{one}12") for one in before)
    assert all(conforms(f"{one}\n\n12") is bool(one) for one in before)
    assert all(conforms(before[-1] + one) is with_tools for one in CALLS[HERMES])
    assert not any(conforms(f"{one}x") for one in (*before, "<think>"))
    budget = conversation(thinking=Thinking(budget=5))
    with pytest.raises(InvalidArgument, match=r"thinking\.budget"):
        constrain(model, budget, reasoning=reasoning)


def test_reasoning_with_tokens_of_its_own_is_left_out() -> None:
    """The tokens <|im_start|> and <|im_end|> play the markers."""
    model = make_model()
    start, end = token("<|im_start|>"), token("<|im_end|>")
    format_ = ReasoningFormat(start="<|im_start|>", end="<|im_end|>")
    asked, constraint = conversation(ToolMode.NONE), ("json_object",)
    for reasoning in (OPEN, MAY_REASON):
        found, scope = constrain(
            model, asked, constraint, reasoning=reasoning._replace(format_=format_)
        )
        assert found[-1:] == constraint
        conforms = matching(model, found)
        assert conforms("{}") and conforms("\n\n{}") is reasoning.is_open
        opening = (start,) if reasoning.may_begin else ()
        assert scope == Scope(
            is_open=reasoning.is_open, opening_token_ids=opening, closing_token_ids=(end,)
        )
    bounded = replace(asked, thinking=Thinking(budget=7))
    nothing, scope = constrain(model, bounded, reasoning=OPEN._replace(format_=format_))
    assert nothing == ()
    assert scope == Scope(is_open=True, closing_token_ids=(end,), max_reasoning_tokens=7)
    assert constrain(model, bounded) == ((), WHOLE)  # a model that does not reason


STRICT = (Tool("add", "", {"properties": {"a": {"type": "integer"}}}, strict=True), Tool("now"))


def test_strict_calls_conform_from_their_marker_on() -> None:
    model = model_of(has_markers=True)
    asked = conversation(tools=STRICT)
    wrapped, scope = constrain(model, asked, setting="mistral")
    marker = model.tokenizer.vocabulary.token_id("[TOOL_CALLS]")
    assert scope == Scope(
        marker_token_ids=(marker,), is_repeated=True, is_leading=False, is_required=False
    )
    conforms = matching(model, wrapped)
    (call,) = CALLS_OF_TOKENS["mistral"]
    assert conforms(call) and not conforms(call.replace("1", "true")) and not conforms("Well.")
    loose = constrain(model, conversation(), setting="mistral")
    assert loose == ((), NOTHING_MORE.scope)


OTHER_OPENINGS = {
    "qwen3_coder": ("<tool_call>\n<function=", "<function="),
    "granite": ("<|tool_call|>", "<tool_call>"),
    "phi4_mini_json": ("<|tool_call|>[", "functools["),
    "deepseek_v31": ("<｜tool▁calls▁begin｜>", ""),
    "deepseek_v3": ("<｜tool▁calls▁begin｜>", ""),
    "kimi_k2": ("<|tool_calls_section_begin|>", ""),
    "openai": (
        "<|channel|>commentary to=functions.get_weather <|constrain|>json",
        " to=functions.get_weather<|channel|>commentary json",
    ),
}
"""What the first opening of a call is replaced by."""
BARE = {"json", "llama3_json", "llama4_json", "llama4_pythonic", "xlam"}
"""Formats whose calls need no marker; that of `json` has none."""
WRITTEN_OTHERWISE = {"cohere_command3", "lfm2", "mistral"}
"""Formats whose examples have other white space or another form than the grammar."""


def grammar_of(found: AnswerConstraint, tokenizer: LLTokenizer, *eos_token_ids: int) -> Grammar:
    """Returns the worker's state of a constraint that has no structured output."""
    compiled: Future[CompiledGrammar] | None = None
    if found.rules:
        compiled = Future()
        constraint = ("rules", found.rules)
        compiled.set_result(CompiledGrammar(lambda: compile_grammar(constraint, tokenizer)))
    eos = eos_token_ids or (tokenizer.eos_token,)
    return Grammar(compiled, found.scope, vocab_size=tokenizer.vocab_size, eos_token_ids=eos)


def conforms_in_steps(grammar: Grammar, tokenizer: LLTokenizer, text: str) -> bool:
    """Returns whether the worker's masks admit a text with the end after it."""
    ids = [*tokenizer.tokenize_str(text, parse_special=True), tokenizer.eos_token]
    tokens, state = np.array(ids, dtype=np.int32), grammar.fork()
    for length, token_id in enumerate(ids):
        mask = state.mask(tokens[:length])
        if mask is not None and not mask[token_id // 32] >> (token_id % 32) & 1:
            return False
    return True


@pytest.mark.parametrize("has_markers", [False, True])
@pytest.mark.parametrize("name", format_examples.NAMES)
def test_strict_calls_conform_from_any_opening_on(name: str, has_markers: bool) -> None:
    vocabulary, tokenizer = tokenizer_of(name, has_markers=has_markers)
    asked, example = conversation(tools=format_examples.TOOLS), format_examples.examples(name)
    found = answer_constraint(asked, vocabulary, None, example.format_, is_constrained=False)
    assert bool(found.rules) is (name != "json" and (has_markers or name != "openai"))
    grammar = grammar_of(found, tokenizer)
    first, other = OTHER_OPENINGS.get(name, ("", ""))
    calls = dict.fromkeys((example.one.strip(), example.one.strip().replace(first, other)))
    before = (
        "I see. < {"
        if name != "openai"
        else "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant"
    )
    for call in calls:
        for text in (call, before + call):
            assert conforms_in_steps(grammar, tokenizer, text) or name in WRITTEN_OTHERWISE, text
            bad = text.replace("city", "town")
            is_free = not found.rules or (
                name in BARE and not any(one in call for one in example.format_.opening)
            )
            assert conforms_in_steps(grammar, tokenizer, bad) is is_free, bad


def test_a_token_within_an_opening_opens_no_call_in_reasoning() -> None:
    vocabulary, tokenizer = make_tokenizer(["<think>", "</think>", "｜DSML｜"])
    asked, format_ = (
        conversation(tools=format_examples.TOOLS),
        format_examples.examples("deepseek_v32").format_,
    )
    found = answer_constraint(asked, vocabulary, OPEN, format_, is_constrained=False)
    grammar = grammar_of(found, tokenizer)
    call = format_examples.examples("deepseek_v32").one
    bad = call.replace("city", "town")
    for text in (f"Or {bad}</think>{call}", f"Hm</think>Well. {call} So.", bad):
        assert conforms_in_steps(grammar, tokenizer, text), text
    assert not conforms_in_steps(grammar, tokenizer, f"Hm</think>Well. {bad}")


def test_strict_calls_whose_marker_is_no_token_conform_within_free_text() -> None:
    wrapped, scope = constrain(model_of(has_markers=False), conversation(tools=STRICT))
    assert scope == WHOLE
    conforms = matching(model_of(has_markers=False), wrapped)
    (call,) = CALLS[HERMES]
    for text in ("", "Well, <tool_", call, f"I call. {call}", f"{call} and\n{call}\nDone. {{"):
        assert conforms(text), text
        assert conforms(text.replace("1", "true")) is ("1" not in text), text


@pytest.mark.parametrize("reasoning", [None, OPEN])
def test_forced_calls_are_strict_and_in_the_models_own_format(reasoning: Reasoning | None) -> None:
    model = model_of(has_markers=False)
    (call,) = CALLS[HERMES]
    before = "Well.</think>" if reasoning else ""
    loose = Tool("add", "", STRICT[0].parameters)
    for name, is_legal in (("", True), ("add", True), ("now", False)):
        choice = ToolChoice(ToolMode.REQUIRED, name)
        asked = conversation(tools=(Tool("now"), loose), tool_choice=choice)
        wrapped, scope = constrain(model, asked, reasoning=reasoning)
        assert scope == WHOLE
        conforms = matching(model, wrapped)
        assert conforms(before + call) is is_legal
        assert conforms(f"{before}{call}\n{call}") is (name == "")
        assert not conforms(before + call.replace("1", "true"))
        assert not any(conforms(before + one) for one in ("", "Well."))
        assert ('"tools.1.parameters"' in wrapped[1]) is is_legal  # its place among all


@pytest.mark.parametrize(("setting", "field"), [("qwen3_coder", "parameters"), ("json", "format")])
def test_a_refused_tool_is_named_by_its_place_among_all(setting: str, field: str) -> None:
    bad = Tool("bad", "", {"not": {}})
    if field == "format":
        bad = custom_tool("bad", "", FreeText("lark", 'start: "x"'))
    for choice in (ToolChoice(ToolMode.REQUIRED, "bad"), ToolChoice(allowed=("bad",))):
        asked = conversation(tools=(*TOOLS, bad._replace(strict=True)), tool_choice=choice)
        with pytest.raises(InvalidArgument) as caught:
            constrain(model_of(has_markers=False), asked, setting=setting)
        assert caught.value.field == f"tools[2].{field}"
        assert caught.value.description.count("'bad'") == 1

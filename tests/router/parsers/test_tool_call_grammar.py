"""Answers of a structured output beside tools: what conforms, or a call as its parser reads it."""

import json
from functools import cache

import pytest
from llguidance import LLTokenizer

from signalbox_contract.structured_output.grammar import compile_grammar
from signalbox_router.parsers.tool_call_formats import HERMES, NONE
from signalbox_router.parsers.tool_call_grammar import with_calls
from signalbox_router.parsers.tool_call_reader import format_of
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    Message,
    Tool,
    ToolChoice,
    ToolMode,
)
from signalbox_router.prompt.served_model import ServedModel
from signalbox_router.prompt.tokenization.tokenizer import Tokenizer
from tests.router.fakes import BOS, EOS, POOL, make_files, make_model, token

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
CALLS_OF_TOKENS = {"mistral": ['[TOOL_CALLS]add[ARGS]{"a": 1}[TOOL_CALLS]add[ARGS]{}']}
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


def conversation(mode: ToolMode = ToolMode.AUTO) -> Conversation:
    return Conversation(messages=[Message("user", "Hi")], tools=TOOLS, tool_choice=ToolChoice(mode))


@pytest.mark.parametrize("has_markers", [False, True])
@pytest.mark.parametrize("setting", CALLS)
@pytest.mark.parametrize("constraint", CONSTRAINTS)
def test_an_answer_conforms_or_calls(
    constraint: tuple[str, ...], setting: str, has_markers: bool
) -> None:
    model = model_of(has_markers=has_markers)
    files = model.tokenizer.files
    tokenizer = LLTokenizer(files["tokenizer.json"].decode(), eos_token=token(EOS))
    wrapped = with_calls(constraint, conversation(), model, setting=setting, takes_tools=True)
    matcher = compile_grammar(wrapped, tokenizer)

    def conforms(text: str) -> bool:
        ids = model.tokenizer.encode_blocking(text, add_special_tokens=False)
        copy = matcher.deep_copy()
        return bool(
            copy.validate_tokens(ids) == len(ids)
            and copy.consume_tokens(ids)
            and copy.is_accepting()
        )

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
    [(ToolMode.REQUIRED, HERMES), (ToolMode.NONE, HERMES), (ToolMode.AUTO, NONE)],
)
def test_a_constraint_stays_where_no_call_may_take_its_place(mode: ToolMode, setting: str) -> None:
    model = model_of(has_markers=False)
    constraint = ("json_object",)
    asked = conversation(mode)
    assert constraint == with_calls(constraint, asked, model, setting=setting, takes_tools=True)

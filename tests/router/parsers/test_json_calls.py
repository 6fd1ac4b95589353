"""Tool calls in JSON, whatever the text."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox_router.parsers.parser_output import Parsed, Parser
from signalbox_router.parsers.tool_call_formats import HERMES, JSON, named
from signalbox_router.parsers.tool_call_reader import ForcedCallParser
from signalbox_router.prompt.chat.conversation import Tool
from tests.router.parsers.test_formats import read

LLAMA3_JSON, MISTRAL = "llama3_json", "mistral"
NAMES = (HERMES, LLAMA3_JSON, MISTRAL, JSON)
TOOLS = (Tool("get_weather"), Tool("add"))
BROKEN_ARGUMENTS = (
    '{"a": }', '{"a": 1]', "{'a': 1}", '{"a": NaN}', '{"a": 01}', "[1]", '"x"', '"[1]"', '{"a": 1,}'
)  # fmt: skip


def make_parser(name: str, **options: Any) -> Parser:
    return named(name).parser(TOOLS, **options)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("before", ["", "I will: "])
def test_arguments_that_are_no_object_are_text(name: str, before: str) -> None:
    opening = "".join(named(name).opening)
    for one in BROKEN_ARGUMENTS:
        text = f'{before}{opening}{{"name": "add", "arguments": {one}}}'
        assert read(make_parser(name), text) == read(make_parser(name), [text]) == (text, [])


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists, max_leaves=8),
    max_size=8,
)


@settings(max_examples=100)
@given(name=st.sampled_from(NAMES), calls=st.lists(ARGUMENTS, min_size=1, max_size=3))
def test_calls_with_any_arguments_are_read_back(name: str, calls: list[dict[str, object]]) -> None:
    objects = [json.dumps({"name": "add", "arguments": arguments}) for arguments in calls]
    end = "</tool_call>" * (name == HERMES)
    text = f"{''.join(named(name).opening)}[{', '.join(objects)}]{end}"
    assert read(make_parser(name), [text]) == ("", [("add", arguments) for arguments in calls])


def test_arguments_that_a_grammar_makes_sure_of_stream_as_they_come() -> None:
    parser = make_parser(JSON, is_certain=True)
    (call,) = parser.push('[{"name": "add", "parameters": {"a"').calls
    assert (call.name, call.arguments) == ("add", '{"a"')
    (more,) = parser.push(": 1").calls
    assert (more.index, more.id, more.name, more.arguments) == (0, "", "", ": 1")


def test_arguments_that_are_cut_are_no_text_as_well() -> None:
    begun, arguments, rest = '[{"name": "add", "parameters": ', '{"a": {"b": 1}}', "}]"
    whole = begun + arguments + rest
    for length in range(len(begun) + 1, len(whole) + 1):
        parser = make_parser(JSON, is_certain=True)
        parsed, rest_of_it = parser.push(whole[:length]), parser.flush()
        assert parsed.calls[0].arguments == arguments[: length - len(begun)]
        assert parsed.text + rest_of_it.text == ""


def test_half_a_marker_is_never_text() -> None:
    parser = make_parser(HERMES)
    assert parser.push("Hi <tool") == Parsed("Hi ", [])
    assert parser.push("ing") == Parsed("<tooling", [])
    assert read(parser, ['<tool_call>{"name": "add"}</tool_']) == ("", [("add", {})])


def test_calls_beyond_the_first_are_left_out_if_there_may_be_one() -> None:
    objects = '{"name": "add", "arguments": {"a": 1}};{"name": "add", "arguments": {"b": 2}}'
    text, calls = read(make_parser(LLAMA3_JSON, max_calls=1), [objects])
    assert (text, calls) == ("", [("add", {"a": 1})])


def test_a_call_that_must_be_made_is_all_of_the_text() -> None:
    parser = ForcedCallParser("add", make_id=lambda: "call_1")
    assert read(parser, ['{"a"', ": 1}"]) == ("", [("add", {"a": 1})])
    assert parser.num_calls == 1


def test_ids_of_mistral_are_of_the_length_that_its_templates_want() -> None:
    parser = make_parser(MISTRAL)
    ids = [
        parser.push(f'[TOOL_CALLS]add{own}[ARGS]{{"a": 1}}').calls[0].id
        for own in ("", "[CALL_ID]aB3dE6gH9", "[CALL_ID]", "[CALL_ID]not an id")
    ]
    assert ids[1] == "aB3dE6gH9"
    assert all(len(one) == 9 and one.isalnum() for one in ids)
    assert len({*ids}) == 4

"""Tool calls in text, whatever its pieces."""

import itertools
import json
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox_router.parsers.parser_output import Parser
from signalbox_router.parsers.tool_call_formats import (
    CHOICES,
    FORMATS,
    HERMES,
    JSON,
    LLAMA3_JSON,
    MISTRAL,
    choose,
)
from signalbox_router.parsers.tool_call_parser import ToolCallParser
from signalbox_router.parsers.tool_call_reader import ForcedCallParser
from signalbox_router.requests.request_output import ToolCallDelta

TOOLS = ("get_weather", "add")
PARIS = '{"city": "Paris"}'
Calls = list[tuple[str, str]]
"""Name and arguments of each."""


def make_parser(name: str, **options: int) -> ToolCallParser:
    return ToolCallParser(FORMATS[name], tool_names=TOOLS, **options)


def read(parser: Parser, pieces: Iterable[str]) -> tuple[str, Calls]:
    """Returns the text and the calls; checks that each call is begun once, in order."""
    text, deltas = "", list[ToolCallDelta]()
    for piece in pieces:
        parsed = parser.push(piece)
        text += parsed.text
        deltas += parsed.calls
    parsed = parser.flush()
    text += parsed.text
    calls: list[list[str]] = []
    for delta in [*deltas, *parsed.calls]:
        if delta.id:
            assert delta.index == len(calls)
            calls.append([delta.name, ""])
        else:
            assert not delta.name
        calls[delta.index][1] += delta.arguments
    return text, [(name, arguments) for name, arguments in calls]


def parse(name: str, text: str) -> tuple[str, Calls]:
    return read(make_parser(name), [text])


WEATHER = ("get_weather", PARIS)
ADD_1 = ("add", '{"a": 1}')
BROKEN_ARGUMENTS = (
    '{"a": }', '{"a": 1]', "{'a': 1}", '{"a": NaN}', '{"a": 01}', "[1]", '"x"', '"[1]"', '{"a": 1,}'
)  # fmt: skip
# A text, what is left of it, its calls.
CASES: dict[str, list[tuple[str, str, Calls]]] = {
    HERMES: [
        # A call, two calls, text around them.
        ('<tool_call>\n{"name": "get_weather", "arguments": %s}\n</tool_call>', "", [WEATHER]),
        ('Let me look.\n<tool_call>{"name": "get_weather", "arguments": %s}</tool_call>\n'
         '<tool_call>{"name": "add", "arguments": {"a": [1, {"b": "}"}]}}</tool_call>\n',
         "Let me look.\n", [WEATHER, ("add", '{"a": [1, {"b": "}"}]}')]),
        ('<tool_call>[{"name": "get_weather", "arguments": %s}, {"name": "add"}]</tool_call>',
         "", [WEATHER, ("add", "{}")]),
        ('<tool_call>{"name": "get_weather", "arguments": %s}</tool_call> Done.',
         " Done.", [WEATHER]),
        # The order of the keys, other keys, arguments in a string.
        ('<tool_call>{"arguments": %s, "name": "get_weather"}</tool_call>', "", [WEATHER]),
        ('<tool_call>{"id": 7, "x": {"y": "}"}, "name": "add", "arguments": "{\\"a\\": 1}"}'
         "</tool_call>", "", [ADD_1]),
        ('<tool_call>{"name": "add", "arguments": null}</tool_call>', "", [("add", "{}")]),
        # A second chance after what was no call; a call that is cut off behind another.
        ('<tool_call> <<tool_call>{"name": "get_weather", "arguments": %s}</tool_call>',
         "<tool_call> <", [WEATHER]),
        ('<tool_call>{"name": "add"}{"name": "add", "argu',
         '{"name": "add", "argu', [("add", "{}")]),
        # Line breaks in strings, which JSON has not, and between tokens, which it has.
        ('<tool_call>{"name": "add", "arguments": {"a": "é\n2"}}',
         "", [("add", '{"a": "é\\n2"}')]),
        ('<tool_call>{"name": "add", "arguments": {\n "a": 2}}', "", [("add", '{\n "a": 2}')]),
        ('<tool_call>{"name": "get_weather", "arguments": %s}\n</tool_', "", [WEATHER]),
    ],
    LLAMA3_JSON: [
        ('{"name": "get_weather", "parameters": %s}', "", [WEATHER]),
        (' <|python_tag|>{"type": "function", "name": "get_weather", "parameters": %s}',
         "", [WEATHER]),
        ('{"name": "get_weather", "parameters": %s}; {"name": "add", "parameters": {}}',
         "", [WEATHER, ("add", "{}")]),
        # After text, in a code fence, before text.
        ('I will look.\n{"name": "get_weather", "parameters": %s} Wait.',
         "I will look.\n Wait.", [WEATHER]),
        ('```json\n{"name": "get_weather", "parameters": %s}\n```', "", [WEATHER]),
        ('Here:\n```\n[{"name": "get_weather", "parameters": %s}, {"name": "add"}]\n```\nOk',
         "Here:\n\nOk", [WEATHER, ("add", "{}")]),
        ('{"x": 1} [2] ``` {"name": "get_weather", "parameters": %s}',
         '{"x": 1} [2] ', [WEATHER]),
    ],
    MISTRAL: [
        ('[TOOL_CALLS][{"name": "get_weather", "arguments": %s}, {"name": "add", "arguments": {}}]',
         "", [WEATHER, ("add", "{}")]),
        ("Well. [TOOL_CALLS]get_weather[ARGS]%s[TOOL_CALLS]add{}",
         "Well. ", [WEATHER, ("add", "{}")]),
    ],
    JSON: [
        ('So: ```{"name": "get_weather", "arguments": %s}```', "So: ", [WEATHER]),
        ('[{"name": "get_weather", "arguments": %s}]', "", [WEATHER]),
        ('{"name": "get_weather", "arguments": %s}\n\n', "", [WEATHER]),
    ],
}  # fmt: skip
NO_CALLS: dict[str, list[str]] = {
    HERMES: [
        "a < b, <tool_cal", "<tool_call>hello</tool_call>", '<tool_call>{"nam": "x"}</tool_call>',
        '<tool_call>{"name": 1}', "<tool_call>[]</tool_call>", '{"name": "add", "arguments": {}}',
        "  \n", '<tool_call>{"name": "add", "argu',
        '<tool_call>{"name": "add", "arguments": {"a": 1',
        '<tool_call>{"name": "add", "arguments": {"a": 1}',
        *(f'<tool_call>{{"name": "add", "arguments": {one}}}' for one in BROKEN_ARGUMENTS),
    ],
    LLAMA3_JSON: [
        '{"name": "Paris", "parameters": {}}', '{"city": "Paris"}', "Paris {}",
        '```python\nadd({"a": [1]})\n``` and `x`', '```json\n{"name": "Paris"}\n```',
        '<|python_tag|>print("hi")',
        *(f'{{"name": "add", "parameters": {one}}}' for one in BROKEN_ARGUMENTS),
        *(f'I will: {{"name": "add", "parameters": {one}}}' for one in BROKEN_ARGUMENTS),
    ],
    MISTRAL: [
        "[TOOL_CALLS]unheard_of{}", "[TOOL] [1]", "[TOOL_CALLS]add[ARGS]{1}",
        *(f'[TOOL_CALLS]{{"name": "add", "arguments": {one}}}' for one in BROKEN_ARGUMENTS),
    ],
    JSON: [
        "[1, 2]", "I would add 1 and 2.",
        *(f'{{"name": "add", "arguments": {one}}}' for one in BROKEN_ARGUMENTS),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "content", "calls"),
    [(name, *case) for name, cases in CASES.items() for case in cases]
    + [(name, text, text, []) for name, texts in NO_CALLS.items() for text in texts],
)
def test_a_text_gives_its_calls_however_it_is_split(
    name: str, text: str, content: str, calls: Calls
) -> None:
    text = text.replace("%s", PARIS)
    assert parse(name, text) == (content, calls)
    assert read(make_parser(name), text) == (content, calls)  # character by character
    for split in range(1, len(text)):
        assert read(make_parser(name), [text[:split], text[split:]]) == (content, calls)


PIECES = st.sampled_from(
    [
        "<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]", "<", "[", "]",
        "{", "}", '"', ":", ",", ";", " ", "\n", "\\", "name", '{"name": "add", ', '"arguments": {',
        '"parameters": {"a": 1}}', "null", "1", "Hé", "add", "\ud7ff",
    ]
)  # fmt: skip


@settings(max_examples=300)
@given(
    name=st.sampled_from(list(FORMATS)),
    pieces=st.lists(PIECES, max_size=20),
    cuts=st.lists(st.integers(0, 200), max_size=8),
)
def test_any_text_gives_the_same_however_it_is_split(
    name: str, pieces: list[str], cuts: list[int]
) -> None:
    text = "".join(pieces)
    ends = sorted({min(cut, len(text)) for cut in cuts} | {0, len(text)})
    split = [text[a:b] for a, b in itertools.pairwise(ends)]
    expected = parse(name, text)
    assert read(make_parser(name), split) == expected
    assert read(make_parser(name), text) == expected
    if not expected[1]:
        assert expected[0] == text  # what is no call is text, all of it
    for _, arguments in expected[1]:
        assert isinstance(json.loads(arguments), dict)


ARGUMENTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.integers() | st.text(max_size=8), st.lists, max_leaves=8),
    max_size=8,
)


@settings(max_examples=100)
@given(name=st.sampled_from(list(FORMATS)), calls=st.lists(ARGUMENTS, min_size=1, max_size=3))
def test_calls_with_any_arguments_are_read_back(name: str, calls: list[dict[str, object]]) -> None:
    format_ = FORMATS[name]
    objects = [json.dumps({"name": "add", "arguments": arguments}) for arguments in calls]
    text, found = parse(name, f"{format_.start}[{', '.join(objects)}]{format_.end}")
    assert text == ""
    assert [json.loads(arguments) for _, arguments in found] == calls


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
        found = read(make_parser(JSON, is_certain=True), [whole[:length]])
        assert found == ("", [("add", arguments[: length - len(begun)])])


def test_half_a_marker_is_never_text() -> None:
    parser = make_parser(HERMES)
    assert parser.push("Hi <tool") == ("Hi ", [])
    assert parser.push("ing") == ("<tooling", [])


def test_calls_beyond_the_first_are_left_out_if_there_may_be_one() -> None:
    objects = '{"name": "add", "arguments": {"a": 1}};{"name": "add", "arguments": {"b": 2}}'
    text, calls = read(make_parser(LLAMA3_JSON, max_calls=1), [objects])
    assert (text, calls) == ("", [("add", '{"a": 1}')])


def test_a_call_that_must_be_made_is_all_of_the_text() -> None:
    parser = ForcedCallParser("add", make_id=lambda: "call_1")
    assert read(parser, ['{"a"', ": 1}"]) == ("", [("add", '{"a": 1}')])
    assert parser.num_calls == 1


@pytest.mark.parametrize(
    ("template", "name"),
    [
        ("{{ '<tool_call>' }}", HERMES),
        ("{{ '[TOOL_CALLS]' }}", MISTRAL),
        ("{{ '<|python_tag|>' }}", LLAMA3_JSON),
        ("{{ '<|start_header_id|>' }}", LLAMA3_JSON),
        ("{{ tools }}", JSON),
    ],
)
def test_the_template_tells_the_format(template: str, name: str) -> None:
    assert choose("auto", template) is FORMATS[name]
    assert choose("none", template) is None
    assert all(choose(choice, template) is FORMATS[choice] for choice in CHOICES[1:-1])


def test_ids_of_mistral_are_of_the_length_that_its_templates_want() -> None:
    (call,) = make_parser(MISTRAL).push('[TOOL_CALLS][{"name": "add", "arguments": {}}]').calls
    assert len(call.id) == 9
    assert call.id.isalnum()

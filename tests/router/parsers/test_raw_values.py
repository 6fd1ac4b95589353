"""Arguments as raw text between tags: what the grammar admits, and what the parser reads."""

import json
from typing import Any

import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.grammar import faulty_definition
from signalbox_router.parsers.python_values import json_of_python
from signalbox_router.parsers.tool_call_formats import named
from signalbox_router.prompt.chat.conversation import INPUT, FreeText, Tool, custom_tool
from tests.contract.structured_output.matching import admits
from tests.router.parsers.test_formats import of_calls, read, tokenizer_of, with_marks

SEED = named("seed_oss")
VOCABULARY, _ = tokenizer_of("seed_oss", has_markers=False)
Texts = dict[str, str]
"""Texts of arguments by their names."""


def text_of(arguments: Texts) -> str:
    parts = [f"<parameter={key}>{value}</parameter>\n" for key, value in arguments.items()]
    return f"<seed:tool_call>\n<function=tool>\n{''.join(parts)}</function>\n</seed:tool_call>"


def is_admitted(
    parameters: dict[str, Any] | None, arguments: Texts, *, strict: bool = True
) -> bool:
    tools = [Tool("other"), Tool("tool", "", parameters, strict)]
    rules = SEED.grammar(tools, vocabulary=VOCABULARY)
    return admits(of_calls(rules), text_of(arguments))


def of_text(**schema: Any) -> dict[str, Any]:
    return {"properties": {"a": {"type": "string", **schema}}, "required": ["a"]}


NODE = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
CASES: list[tuple[Any, list[Texts], list[Texts]]] = [
    (None, [{}], [{"a": "1"}]),
    (of_text(), [{"a": ""}, {"a": '\n"<b>\n'}], [{}, {"a": "</parameter>"}, {"a": "1", "b": "2"}]),
    (of_text(enum=["ab", "a|b", 1]), [{"a": "ab"}, {"a": "a|b"}], [{"a": "a"}, {"a": '"ab"'}]),
    (of_text(const="x/\n"), [{"a": "x/\n"}], [{"a": "x/"}]),
    (of_text(minLength=2, maxLength=3), [{"a": "é<"}, {"a": "abc"}], [{"a": "a"}, {"a": "abcd"}]),
    (of_text(pattern="^[a-z]+/[0-9]$"), [{"a": "ab/1"}], [{"a": "ab/12"}, {"a": "0ab/1"}]),
    (of_text(pattern="b|(cc)?d"), [{"a": "abc"}], [{"a": "a"}]),
    (of_text(pattern=r"^[^|\](]+$"), [{"a": "ab"}], [{"a": "a|"}, {"a": "a]"}, {"a": ""}]),
    (of_text(pattern="^(a|b)[)]|(d)$"), [{"a": "b)x"}, {"a": "xd"}], [{"a": "xb)"}, {"a": "dx"}]),
    (of_text(pattern=r"\$$", minLength=3), [{"a": "10$"}], [{"a": "10"}, {"a": "$$"}]),
    (of_text(anyOf=[{"const": "x"}, {"pattern": "^y+$"}]), [{"a": "yy"}], [{"a": "xy"}]),
    (of_text(oneOf=[{"const": "x"}, {"enum": ["y"]}]), [{"a": "y"}], [{"a": "z"}]),
    ({"properties": {"a": {"$ref": "#/definitions/Id"}},
      "definitions": {"Id": {"allOf": [{"type": "string"}, {"pattern": "^i"}]}}},
     [{}, {"a": "id"}], [{"a": '"id"'}]),
    # What is no text is JSON, also where the type is open.
    ({"properties": {"a": {}}}, [{"a": '"b"'}, {"a": "[1]"}], [{"a": "b"}]),
    ({"properties": {"a": {"type": ["string", "null"]}}}, [{"a": "null"}], [{"a": "b"}]),
    ({"properties": {"a": NODE}, "$defs": {"Node": NODE}},
     [{"a": '{"next": {"next": {}}}'}], [{"a": '{"next": 1}'}, {"a": ""}]),
    # Arguments that are not declared, and those that are required alone.
    ({"type": "object"}, [{}, {"b": "1"}, {"b" * 256: "1"}],
     [{"b": "x"}, {"b c": "1"}, {"b" * 257: "1"}]),
    ({"properties": {}}, [{}], [{"b": "1"}]),
    ({"properties": {"a": {"type": "integer"}}, "additionalProperties": {"type": "string"}},
     [{"a": "1"}, {"ab": "x"}, {"a": "1", "b": "x"}], [{"a": "x"}, {"b": "x", "a": "x"}]),
    ({"required": ["b"], "additionalProperties": {"type": "integer"}},
     [{"b": "1"}, {"b": "1", "c": "2"}], [{}, {"c": "1"}]),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "legal", "illegal"), CASES)
def test_a_strict_call_conforms_to_its_schema(
    parameters: Any, legal: list[Texts], illegal: list[Texts]
) -> None:
    assert [one for one in legal if not is_admitted(parameters, one)] == []
    assert [one for one in illegal if is_admitted(parameters, one)] == []
    assert is_admitted(parameters, {"any": "thing"}, strict=False)


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"properties": {"a": {}}, "anyOf": [{"required": ["a"]}]}, '"anyOf" of all arguments'),
        (of_text(**{"not": {"const": "a"}}), '"not" of a text'),
        (of_text(oneOf=[{"pattern": "a"}, {"pattern": "b"}]), '"oneOf" of a text'),
        ({"properties": {"a>b": {}}}, "no argument named 'a>b'"),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "a place that is not there"),
    ],
)
def test_what_a_call_cannot_conform_to_is_refused_by_name(parameters: Any, reason: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        is_admitted(parameters, {})
    assert caught.value.field == "tools[1].parameters"
    assert reason in caught.value.description
    assert is_admitted(parameters, {"any": "thing"}, strict=False)


def test_the_name_of_another_argument_ends_where_the_parser_ends_it() -> None:
    format_ = named("deepseek_v32")
    rules = format_.grammar([Tool("tool", "", {}, strict=True)], vocabulary=VOCABULARY)
    token = "｜DSML｜"
    for name in ("ab", 'a"b'):
        argument = f'<{token}parameter name="{name}" string="false">1</{token}parameter>\n'
        call = f'<{token}invoke name="tool">\n{argument}</{token}invoke>'
        text = f"<{token}function_calls>\n{call}\n</{token}function_calls>"
        assert admits(of_calls(rules), text) is ('"' not in name)


@pytest.mark.parametrize("name", ["seed_oss", "llama4_pythonic", "json"])
def test_a_fault_below_an_argument_names_the_tool(name: str) -> None:
    parameters = {"properties": {"a": {"$ref": "#/$defs/X"}}, "$defs": {"X": {"uniqueItems": True}}}
    tools = [Tool("other", strict=True), Tool("tool", "", parameters, strict=True)]
    rules = named(name).grammar(tools, vocabulary=VOCABULARY)
    assert faulty_definition(("rules", f"start: calls\n{rules}")) == "tools.1.parameters"


def test_a_text_of_bounded_length_may_be_long_and_have_half_an_end_in_it() -> None:
    format_, schema = named("qwen3_coder"), of_text(maxLength=20_000)
    tools = [Tool("tool", "", schema, strict=True)]
    value = "".join(f"x < {i}\n</par</parameter> y\n" for i in range(500))
    call = f"<function=tool>\n<parameter=a>\n{value}\n</parameter>\n</function>"
    text = f"<tool_call>\n{call}\n</tool_call>"
    assert admits(of_calls(format_.grammar(tools, vocabulary=VOCABULARY)), text)
    for is_certain in (True, False):
        parser = format_.parser(tools, is_certain=is_certain)
        assert read(parser, [text]) == ("", [("tool", {"a": value})])


LARK = "begin: 'patch' NL line+\nline: /[+-][^\\n]*/ NL\nNL: /\\n/\n%ignore /#/"


def test_a_custom_tool_has_its_own_grammar_where_its_input_is_raw_text() -> None:
    tools = [Tool("other"), custom_tool("tool", "", FreeText("lark", LARK))]
    constraint = of_calls(SEED.grammar(tools, vocabulary=VOCABULARY))
    for text, is_legal in {"patch\n+ <a>\n#-\n": True, "patch\n": False, "begin": False}.items():
        assert admits(constraint, text_of({INPUT: text})) is is_legal
    for name in ("json", "llama4_pythonic"):
        with pytest.raises(InvalidArgument) as caught:
            named(name).grammar(tools, vocabulary=VOCABULARY)
        assert caught.value.field == "tools[1].format"
        assert "a regex is" in caught.value.description


def test_a_custom_tool_of_a_regex_is_served_in_each_format() -> None:
    tool = custom_tool("tool", "", FreeText("regex", "a|b+"))
    json_text, python = '{"name": "tool", "arguments": {"input": "%s"}}', '[tool(input="%s")]'
    forms = {"seed_oss": text_of({INPUT: "%s"}), "json": json_text, "llama4_pythonic": python}
    for name, form in forms.items():
        constraint = of_calls(named(name).grammar([tool], vocabulary=VOCABULARY))
        assert admits(constraint, form % "bb")
        assert not admits(constraint, form % "ab")


ARGUMENTS: list[tuple[Any, str, Any]] = [
    ({"type": "string"}, "1", "1"),
    ({"type": "integer"}, " 1\n", 1),
    ({"type": "integer"}, "one", "one"),
    ({"type": "boolean"}, "False", False),
    ({"type": ["string", "null"]}, "None", None),
    ({"type": ["string", "null"]}, "12", "12"),
    ({"type": ["string", "null"]}, '"12"', "12"),
    ({"anyOf": [{"type": "string"}, {"$ref": "#/$defs/X"}]}, "12", 12),
    ({"enum": ["1", "2"]}, "1", "1"),
    ({}, "NaN", "NaN"),
    ({}, "('a',)", "('a',)"),
    ({"type": "array"}, "('a', None)", ["a", None]),
    ({}, '{"a": "é"}', {"a": "é"}),
    (5, "1", 1),
]


@pytest.mark.parametrize(("schema", "text", "value"), ARGUMENTS)
def test_a_value_is_what_its_schema_says(schema: Any, text: str, value: Any) -> None:
    parameters = {"properties": {"a": schema}, "$defs": {"X": {"type": "integer"}}}
    parser = SEED.parser([Tool("tool", "", parameters)])
    assert read(parser, [text_of({"a": text})]) == ("", [("tool", {"a": value})])


@pytest.mark.parametrize(("tag", "line"), [("seed:tool_call", ""), ("tool_call", "\n")])
def test_arguments_that_a_grammar_makes_sure_of_stream_as_they_come(tag: str, line: str) -> None:
    values = {"b": "1", "a": '\n<b>\n\n</p é "\\\n'}
    text = text_of({key: f"{line}{value}{line}" for key, value in values.items()})
    text = text.replace("seed:tool_call", tag)
    whole = json.dumps({"b": 1, "a": values["a"]}, ensure_ascii=False)
    format_ = named("qwen3_coder" if line else "seed_oss")
    lengths = []
    for length in range(text.index("<parameter"), len(text)):
        parser = format_.parser([Tool("tool", "", of_text())], is_certain=True)
        parsed = [parser.push(text[:length]), parser.flush()]
        arguments = "".join(call.arguments for one in parsed for call in one.calls)
        assert "".join(one.text for one in parsed) == ""
        assert whole.startswith(arguments)
        lengths.append(len(arguments))
    assert lengths == sorted(lengths)
    assert len({*lengths}) > len(values["a"])
    assert lengths[-1] == len(whole)


def test_schemas_that_lead_to_many_others_cost_little() -> None:
    wide = {"anyOf": [{"$ref": "#/$defs/X"}] * 50}
    parameters = {"properties": {"a": wide}, "$defs": {"X": wide}}
    parser = SEED.parser([Tool("tool", "", parameters)])
    assert read(parser, [text_of({"a": "1"})]) == ("", [("tool", {"a": 1})])


LINES = {"a": {"type": "string"}, "b": {"type": "integer"}}


@pytest.mark.parametrize("is_token", [False, True])
@pytest.mark.parametrize(
    ("lines", "arguments"),
    [
        ("<parameter=a>\nx\ny\n<parameter=b>\n1\n</parameter>", {"a": "x\ny", "b": 1}),
        ("<parameter=b>\n1\n<parameter=a>\nx", {"a": "x", "b": 1}),
        ("<parameter=b>\n1", {"b": 1}),
        # These are no ends: another tool's argument, one that has been given, a line with more.
        ("<parameter=b>\n1\n</parameter>\n<parameter=a>\n<parameter=c>\n<parameter=b>\n</function>"
         "\n x<parameter=a>\n</parameter>",
         {"a": "<parameter=c>\n<parameter=b>\n</function>\n x<parameter=a>", "b": 1}),
    ],
)  # fmt: skip
def test_a_value_ends_before_another_argument_if_its_tag_is_left_out(
    lines: str, arguments: dict[str, Any], is_token: bool
) -> None:
    coder = named("qwen3_coder")
    text = f"<tool_call>\n<function=tool>\n{lines}\n</function>\n</tool_call>"
    tools = [Tool("tool", "", {"properties": LINES})]
    marked = frozenset(coder.markers) if is_token else frozenset()
    text = with_marks(coder, text) if is_token else text
    for pieces in ([text], text):
        found = read(coder.parser(tools, marked=marked), pieces)
        assert found == ("", [("tool", arguments)])


def test_a_text_that_a_grammar_admits_has_tags_of_other_arguments() -> None:
    text = (
        "<tool_call>\n<function=tool>\n<parameter=a>\nx\n<parameter=b>\n1\n</parameter>\n"
        "</function>\n</tool_call>"
    )
    parser = named("qwen3_coder").parser([Tool("tool", "", {"properties": LINES}, strict=True)])
    assert read(parser, text) == ("", [("tool", {"a": "x\n<parameter=b>\n1"})])


def test_a_string_that_is_not_closed_costs_little_and_is_left_as_it_is() -> None:
    for text in ("'" + r"\' (1,) " * 100_000, r'"a\"'):
        assert json_of_python(text) == text

"""What an answer must conform to where the tool choice forces calls."""

import json
from contextlib import nullcontext
from typing import Any
from unittest.mock import sentinel

import jsonschema
import pytest

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.grammar import find_fault
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec
from signalbox_router.apis.openai.requests.error_params import param_of
from signalbox_router.params.structured_output_check import GrammarChecker, closed_form
from signalbox_router.parsers.tool_call_reader import format_of_answer, reader_of
from signalbox_router.parsers.tool_call_schema import forced_schema
from signalbox_router.prompt.chat.conversation import (
    Conversation,
    FreeText,
    Message,
    Tool,
    ToolChoice,
    ToolMode,
    custom_tool,
)
from signalbox_router.requests.active_request import Update
from signalbox_router.requests.request_output import Delta, Finish, FinishReason
from tests.contract.structured_output.matching import admits
from tests.router.apis.inference.test_chat import make_chat
from tests.router.fakes import make_model

CITY = {"type": "object", "properties": {"at": {"$ref": "#/$defs/City"}}, "required": ["at"]}
REQUIRED = pb.TOOL_CHOICE_MODE_REQUIRED
WEATHER = Tool("get_weather", "", {**CITY, "$defs": {"City": {"type": "string"}}})
ADD = Tool("add", "", {"type": "object", "properties": {"a": {"type": "integer"}}})


def make_conversation(choice: ToolChoice, *tools: Tool, **fields: Any) -> Conversation:
    return Conversation(
        messages=[Message("user", "Hi")],
        tools=tools or (WEATHER, ADD),
        tool_choice=choice,
        **fields,
    )


def test_allowed_and_custom_tools_are_what_an_answer_may_call() -> None:
    commit = custom_tool("commit", "", FreeText("regex", "[0-9a-f]{7}"))
    choice = ToolChoice(ToolMode.REQUIRED, allowed=("add", "commit"))
    conversation = make_conversation(choice, WEATHER, ADD, commit)
    schema = forced_schema(conversation)
    constraint = closed_form(
        ("json_schema", json.dumps(schema)), disable_additional_properties=True
    )
    for text, is_hash in (("0123abc", True), ("0123abcd", False), ("HEAD", False)):
        call = {"name": "commit", "parameters": {"input": text}}
        assert is_legal(schema, [call]) is is_hash
        assert admits(constraint, json.dumps([call])) is is_hash
    assert is_legal(schema, [{"name": "add", "parameters": {"a": 1}}])
    assert not is_legal(schema, [{"name": "get_weather", "parameters": {"at": "Paris"}}])
    assert len(conversation.offered_tools) == 3  # the prompt is that of any other choice
    with pytest.raises(InvalidArgument, match=r"tool_choice.tools\[0\]"):
        make_conversation(ToolChoice(allowed=("sub",))).check()


@pytest.mark.parametrize("name", ["", "patch", "add"])
def test_a_lark_grammar_is_refused_where_forced_calls_are_json(name: str) -> None:
    patch = custom_tool("patch", "", FreeText("lark", 'start: "x"'))
    asked = make_conversation(ToolChoice(ToolMode.REQUIRED, name), ADD, patch)
    refusal = pytest.raises(InvalidArgument, match=r"tools\[1\]\.format: .* Lark")
    with nullcontext() if name == "add" else refusal:
        assert is_legal(forced_schema(asked), {"a": 1})


def is_legal(schema: dict[str, Any] | None, answer: Any) -> bool:
    assert schema is not None
    return bool(jsonschema.Draft202012Validator(schema).is_valid(answer))


def test_any_tool_is_a_list_of_calls() -> None:
    schema = forced_schema(make_conversation(ToolChoice(ToolMode.REQUIRED)))
    call = {"name": "get_weather", "parameters": {"at": "Paris"}}
    other = {"name": "add", "parameters": {"a": 1}}
    assert is_legal(schema, [call, other])
    for answer in (
        [],
        call,
        [{**call, "name": "add2"}],
        [{"name": "get_weather", "parameters": {}}],
    ):
        assert not is_legal(schema, answer)
    one = make_conversation(ToolChoice(ToolMode.REQUIRED), parallel_tool_calls=False)
    assert not is_legal(forced_schema(one), [call, other])


def test_a_named_tool_is_its_arguments() -> None:
    schema = forced_schema(make_conversation(ToolChoice(ToolMode.REQUIRED, "get_weather")))
    assert is_legal(schema, {"at": "Paris"})
    assert not is_legal(schema, {"at": 1})
    assert forced_schema(make_conversation(ToolChoice())) is None


@pytest.mark.parametrize("choice", [pb.ToolChoice(tool="ping"), pb.ToolChoice(mode=REQUIRED)])
@pytest.mark.parametrize(("parameters", "illegal"), [("", {"x": 1}), ("{}", 5)])
def test_a_forced_call_has_an_object_of_no_more_than_the_parameters(
    choice: pb.ToolChoice, parameters: str, illegal: object
) -> None:
    request = make_chat(
        tools=[pb.Tool(name="ping", parameters=parameters)],
        tool_choice=choice,
    )
    schema = forced_schema(chat_codec.conversation(request))

    def answer(arguments: object) -> object:
        return arguments if choice.tool else [{"name": "ping", "parameters": arguments}]

    assert is_legal(schema, answer({}))
    assert not is_legal(schema, answer(illegal))


NESTED = {"a": {"k": {"a": {"k": {}}}}, "k": {}}
ROOTS: list[tuple[dict[str, Any], Any, Any]] = [
    # References start at the tool's own root, however they are written.
    ({"properties": {"a": {"$ref": "#"}, "k": {"type": "object"}}, "additionalProperties": False},
     NESTED, {"a": {"z": 1}}),
    ({"properties": {"a": {"type": "integer"}, "b": {"$ref": "#/properties/a"}}},
     {"b": 1}, {"b": "x"}),
    ({"properties": {"a b%/": {"type": "integer"}, "b": {"$ref": "#/properties/a%20b%25~1"}}},
     {"b": 1}, {"b": "x"}),
    ({"properties": {"b": {"$ref": "#it"}}, "$defs": {"X": {"$anchor": "it", "type": "integer"}}},
     {"b": 1}, {"b": "x"}),
    ({"$id": "https://example.com/tool", "properties": {
        "b": {"$ref": "/tool#/$defs/X"}, "c": {"$ref": "part#/$defs/X"}},
      "$defs": {"X": {"type": "integer"},
                "P": {"$id": "part", "$ref": "#/$defs/X", "$defs": {"X": {"type": "string"}}}}},
     {"b": 1, "c": "x"}, {"c": 1}),
    ({"$schema": "http://json-schema.org/draft-04/schema#", "id": "http://example.com/x.json",
      "properties": {"b": {"$ref": "x.json#/definitions/X"}, "c": {"$ref": "#/definitions/X"}},
      "definitions": {"X": {"type": "integer", "maximum": 3, "exclusiveMaximum": True}}},
     {"b": 1, "c": 2}, {"c": 3}),
    ({"properties": {"b": {"$ref": "#/$defs/X/$defs/Y"}},
      "$defs": {"X": {"$defs": {"Y": {"type": "integer"}}}}}, {"b": 1}, {"b": "x"}),
    ({"$id": "#top", "properties": {"b": {"$ref": "#top"}}}, {"b": {"b": {}}}, {"b": 1}),
]  # fmt: skip


@pytest.mark.parametrize(("parameters", "legal", "illegal"), ROOTS)
def test_references_start_at_the_root_of_their_own_tool(
    parameters: dict[str, Any], legal: Any, illegal: Any
) -> None:
    same_names = {"X": {"type": "boolean"}, "City": {"type": "null"}}
    other = {"properties": {"b": {"$ref": "#/$defs/X"}}, "$defs": same_names}
    tools = [Tool("first", "", other), Tool("tool", "", parameters), Tool("last", "", other)]
    if parameters.get("$id") == "#top":
        illegal = None  # an object that says nothing of its values takes any
    for choice in (ToolChoice(ToolMode.REQUIRED), ToolChoice(ToolMode.REQUIRED, "tool")):
        schema = forced_schema(make_conversation(choice, *tools))
        constraint = closed_form(
            ("json_schema", json.dumps(schema)), disable_additional_properties=True
        )
        assert find_fault(constraint) is None
        for arguments, is_legal_one in ((legal, True), (illegal, False)):
            answer = [{"name": "tool", "parameters": arguments}]
            text = json.dumps(arguments if choice.tool else answer)
            assert admits(constraint, text) is is_legal_one, (arguments, schema)
        assert admits(constraint, '[{"name": "last", "parameters": {"b": true}}]') is not bool(
            choice.tool
        )


@pytest.mark.parametrize(
    ("parameters", "reason"),
    [
        ({"type": "array", "uniqueItems": True}, '"uniqueItems" is not supported'),
        ({"properties": {"a": {"$ref": "#/$defs/none"}}}, "a place that is not there: /$defs/none"),
        ({"properties": {"a": {"$ref": "other.json"}}}, "another document"),
        ({"properties": {"a": 5}}, "a schema must be an object"),
        ({"properties": {"a": {"type": "integer", "minimum": 2**53 + 1}}}, '"minimum"'),
        ({"properties": {"a": {"pattern": "(?=a)b"}}}, "look-around"),
    ],
)
@pytest.mark.parametrize("tool", ["", "bad"])
async def test_a_fault_names_the_tool_and_the_reason_before_its_schema(
    parameters: dict[str, Any], reason: str, tool: str
) -> None:
    tools = [ADD, Tool("bad", "", {**parameters, "title": "T" * 500})]
    schema = forced_schema(make_conversation(ToolChoice(ToolMode.REQUIRED, tool), *tools))
    with pytest.raises(InvalidArgument) as caught:
        await GrammarChecker().prepare(("json_schema", json.dumps(schema)))
    assert caught.value.field == "tools[1].parameters"
    assert param_of(caught.value.field, None) == "tools[1].function.parameters"
    assert reason in caught.value.description
    assert "get_weather" not in caught.value.description
    assert len(caught.value.description) < 500


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (ToolChoice(ToolMode.REQUIRED), '[{"name": "add", "parameters": {"a": 1}}]'),
        (ToolChoice(ToolMode.REQUIRED, "add"), '{"a": 1}'),
    ],
)
@pytest.mark.parametrize("takes_tools", [False, True])
def test_a_forced_answer_is_read_as_calls(choice: ToolChoice, text: str, takes_tools: bool) -> None:
    setting = "auto"
    if takes_tools:
        setting = "hermes"
        text = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>'
    asked = make_conversation(choice)
    model = make_model()
    format_ = format_of_answer(asked, model, setting=setting, takes_tools=takes_tools)
    reader = reader_of(format_, asked, model)
    assert reader is not None
    delta = Delta(index=0, text=text, finish=Finish(FinishReason.STOP))
    reader.read(Update(sentinel.request, [delta], None))
    (call,) = delta.tool_calls
    assert (delta.text, call.name, call.arguments) == ("", "add", '{"a": 1}')
    assert delta.finish == Finish(FinishReason.TOOL_CALLS)

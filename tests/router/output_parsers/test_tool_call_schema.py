"""What an answer must conform to where the tool choice forces calls."""

import json
from typing import Any
from unittest.mock import sentinel

import jsonschema
import pytest

from contract.errors import InvalidArgument
from protos.inference.v1 import inference_pb2 as pb
from router.inference import generate_codec
from router.output_parsers.tool_call_reader import reader_of
from router.output_parsers.tool_call_schema import forced_schema
from router.prompt.conversation import Conversation, Message, Tool, ToolChoice, ToolMode
from router.requests.active_request import Update
from router.requests.request_output import Delta, Finish, FinishReason
from tests.router.fakes import make_model
from tests.router.inference.test_chat import make_chat

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
    _, text = generate_codec.chat_api_request(request).sampling["structured_output"]

    def answer(arguments: object) -> object:
        return arguments if choice.tool else [{"name": "ping", "parameters": arguments}]

    assert is_legal(json.loads(text), answer({}))
    assert not is_legal(json.loads(text), answer(illegal))


def test_definitions_that_contradict_each_other_are_refused() -> None:
    other = Tool("add", "", {**CITY, "$defs": {"City": {"type": "integer"}}})
    with pytest.raises(InvalidArgument, match="City"):
        forced_schema(make_conversation(ToolChoice(ToolMode.REQUIRED), WEATHER, other))


def test_a_forced_call_asks_for_structured_output() -> None:
    request = make_chat(
        tools=[pb.Tool(name="add", parameters=json.dumps(ADD.parameters))],
        tool_choice=pb.ToolChoice(tool="add"),
    )
    assert (
        generate_codec.chat_api_request(request).sampling["structured_output"][0] == "json_schema"
    )
    request.tool_choice.mode = pb.TOOL_CHOICE_MODE_AUTO
    assert "structured_output" not in generate_codec.chat_api_request(request).sampling


@pytest.mark.parametrize(
    ("choice", "text"),
    [
        (ToolChoice(ToolMode.REQUIRED), '[{"name": "add", "parameters": {"a": 1}}]'),
        (ToolChoice(ToolMode.REQUIRED, "add"), '{"a": 1}'),
    ],
)
def test_a_forced_answer_is_read_as_calls(choice: ToolChoice, text: str) -> None:
    reader = reader_of(make_conversation(choice), make_model(), setting="auto")
    assert reader is not None
    delta = Delta(index=0, text=text, finish=Finish(FinishReason.STOP))
    reader.read(Update(sentinel.request, [delta], None))
    (call,) = delta.tool_calls
    assert (delta.text, call.name, call.arguments) == ("", "add", '{"a": 1}')
    assert delta.finish == Finish(FinishReason.TOOL_CALLS)

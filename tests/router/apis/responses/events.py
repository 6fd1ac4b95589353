"""Answers of the Responses API, read as the SDK's own types and with nothing beside them."""

import json
from collections.abc import Iterator
from typing import Any

from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel, TypeAdapter

from tests.router.apis.openai.clients import MODEL, Http

_EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATH = "/v1/responses"
_ANSWERED = {"store"}
"""Fields of an answer of OpenAI's that its package does not declare."""
CALL = '<tool_call>{"name": "%s", "arguments": %s}</tool_call>'


def function(name: str = "add", **fields: Any) -> dict[str, Any]:
    parameters = {"type": "object", "properties": {"a": {"type": "integer"}}}
    return {"type": "function", "name": name, "parameters": parameters} | fields


async def ask(http: Http, input: Any = "Hi", **fields: Any) -> Any:
    """Returns the whole answer."""
    answer = await http.raw.post(PATH, json={"model": MODEL, "input": input} | fields)
    assert answer.status_code == 200, answer.text
    body = answer.json()
    response = Response.model_validate(body)
    assert not list(_unknown(response))
    return response


async def events_of(http: Http, input: Any = "Hi", **fields: Any) -> list[Any]:
    """Returns the events of a stream, in order and numbered."""
    asked = {"model": MODEL, "input": input, "stream": True} | fields
    answer = await http.raw.post(PATH, json=asked)
    assert answer.status_code == 200, answer.text
    return read_events(answer.text)


def read_events(stream: str) -> list[Any]:
    """Returns the events, each as its type and without a field that this does not declare."""
    *written, rest = stream.split("\n\n")
    assert not rest
    events = []
    for number, one in enumerate(written):
        name, data = one.split("\n")
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        assert body["sequence_number"] == number
        event = _EVENT.validate_python(body)
        assert event.type == body["type"]
        assert not list(_unknown(event)), event
        events.append(event)
    return events


def _unknown(value: Any) -> Iterator[str]:
    """Yields the fields of a model that its type does not declare."""
    if isinstance(value, list):
        for one in value:
            yield from _unknown(one)
    if isinstance(value, BaseModel):
        yield from (value.model_extra or {}).keys() - _ANSWERED
        for name in type(value).model_fields:
            yield from _unknown(getattr(value, name))


def built(events: list[Any]) -> list[dict[str, Any]]:
    """Returns the items that the deltas of a stream make, and checks what closes them."""
    items: list[dict[str, Any]] = []
    text = ""
    for event in events:
        match event.type.removeprefix("response."):
            case "output_item.added":
                assert event.output_index == len(items)
                items.append(event.item.to_dict())
                text = ""
            case name if name.endswith(".delta"):
                assert event.item_id == items[-1]["id"]
                assert event.delta
                text += event.delta
            case name if name.endswith("text.done"):
                assert event.text == text
            case "function_call_arguments.done":
                assert event.arguments == text
            case "custom_tool_call_input.done":
                assert event.input == text
            case "output_item.done":
                assert event.item.id == items[-1]["id"]
                items[-1] = event.item.to_dict()
    last = events[-1].response
    assert [one.to_dict() for one in last.output] == items
    return items

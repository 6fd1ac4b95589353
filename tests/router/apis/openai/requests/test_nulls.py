"""A field that is null is one that was left out, as clients of vLLM's API send it."""

import json
from typing import Any

import pytest
from pydantic import BaseModel

from signalbox_router.apis.messages import types as messages
from signalbox_router.apis.openai.requests.chat_types import (
    ChatBody,
    ChatMessage,
    DetokenizeBody,
    FunctionDefinition,
    FunctionToolCall,
    TokenizeBody,
)
from signalbox_router.apis.openai.requests.types import CompletionBody, JsonSchema, StreamOptions
from signalbox_router.apis.responses.item_types import (
    FunctionCall,
    InputMessage,
    ReasoningInput,
    ToolOutput,
)
from signalbox_router.apis.responses.tool_types import Function
from signalbox_router.apis.responses.types import ReasoningOptions, ResponsesBody, TextOptions
from tests.router.apis.openai.clients import HI, Http

SCHEMA = {"schema": {"type": "object"}}
CALL: dict[str, Any] = {"id": "call_1", "function": {"name": "f", "arguments": "{}"}}


def nulls(body: type[BaseModel]) -> dict[str, None]:
    """Returns all fields that may be left out, as null."""
    fields = body.model_fields.items()
    return {field.alias or name: None for name, field in fields if not field.is_required()}


FUNCTION = {**nulls(FunctionDefinition), "name": "f"}
CHAT: dict[str, Any] = {
    **nulls(ChatBody),
    "messages": [
        {**nulls(ChatMessage), **HI[0]},
        {
            **nulls(ChatMessage),
            "role": "assistant",
            "tool_calls": [{**nulls(FunctionToolCall), "type": "function", **CALL}],
        },
        {**nulls(ChatMessage), "role": "tool", "tool_call_id": "call_1", "content": "1"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": "none",
    "response_format": {"type": "json_schema", "json_schema": {**nulls(JsonSchema), **SCHEMA}},
}
USE = {"type": "tool_use", "id": "a", "name": "f", "input": {}}
MESSAGES: dict[str, Any] = {
    **nulls(messages.MessagesBody),
    "max_tokens": 5,
    "messages": [
        {**nulls(messages.MessageParam), **HI[0]},
        {"role": "assistant", "content": [{**nulls(messages.ToolUseBlock), **USE}]},
        {
            "role": "user",
            "content": [
                {**nulls(messages.ToolResultBlock), "type": "tool_result", "tool_use_id": "a"},
                {**nulls(messages.TextBlock), "type": "text", "text": "Hi"},
            ],
        },
    ],
    "tools": [
        {**nulls(messages.CustomTool), "name": "f", "input_schema": {}},
        {**nulls(messages.ClientTool), "name": "bash", "type": "bash_20250124"},
    ],
    "tool_choice": {**nulls(messages.ToolChoiceParam), "type": "auto"},
    "thinking": {**nulls(messages.ThinkingParam), "type": "adaptive"},
    "output_config": nulls(messages.OutputConfig),
    "metadata": nulls(messages.Metadata),
}
BODIES = {
    "/v1/messages": MESSAGES,
    "/v1/completions": {**nulls(CompletionBody), "prompt": "Hi"},
    "/v1/chat/completions": CHAT,
    "/v1/responses": {
        **nulls(ResponsesBody),
        "input": [
            {**nulls(InputMessage), **HI[0]},
            {**nulls(ReasoningInput), "type": "reasoning"},
            {**nulls(FunctionCall), "type": "function_call", "call_id": "c", **CALL["function"]},
            {**nulls(ToolOutput), "type": "function_call_output", "call_id": "c", "output": "1"},
        ],
        "tools": [{**nulls(Function), "type": "function", "name": "f"}],
        "tool_choice": "none",
        "text": nulls(TextOptions),
        "reasoning": nulls(ReasoningOptions),
    },
    "/tokenize": {**nulls(TokenizeBody), "prompt": "Hi"},
    "/detokenize": {**nulls(DetokenizeBody), "tokens": [5]},
}


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(one) for key, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def steady(answer: dict[str, Any]) -> dict[str, Any]:
    """Leaves out what differs from request to request."""
    name = str(answer.get("id", "")).partition("_")[2]  # a part of the ids of all items
    times = ("id", "created", "created_at", "completed_at")
    text = json.dumps({key: value for key, value in answer.items() if key not in times})
    steadied: dict[str, Any] = json.loads(text.replace(name, "x") if name else text)
    return steadied


@pytest.mark.parametrize("path", BODIES)
async def test_a_null_is_a_field_that_was_left_out(http: Http, path: str) -> None:
    body = BODIES[path]
    answers = [await http.raw.post(path, json=one) for one in (body, without_nulls(body))]
    assert [answer.status_code for answer in answers] == [200, 200], answers[0].text
    with_nulls, bare = (steady(answer.json()) for answer in answers)
    assert with_nulls == bare
    assert "x-signalbox-ignored-fields" not in answers[0].headers
    added = http.stack.scheduler.added
    if added:
        first, second = added
        assert first.prompt_token_ids == second.prompt_token_ids
        assert first.num_sequences == second.num_sequences == 1
    await http.stack.check_nothing_is_left()


async def test_options_of_a_stream_may_be_null(http: Http) -> None:
    body = {"prompt": "Hi", "stream": True, "stream_options": nulls(StreamOptions)}
    answer = await http.raw.post("/v1/completions", json=body)
    assert answer.status_code == 200 and '"usage":{' not in answer.text
    await http.stack.check_nothing_is_left()

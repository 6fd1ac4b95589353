"""The scripted model says what its script says, and a worker that takes over goes on with it."""

import json
from dataclasses import replace
from typing import Any

import httpx2
import pytest

from tests.agents.families import CHATML
from tests.agents.scripted_executor import Family
from tests.agents.stack import scripted_stack

CALL = '<tool_call>\n{"name": "read", "arguments": {"path": "a.py"}}\n</tool_call>'
TOOL = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}


def _answer(prompt: str) -> str:
    if "<tool_response>" in prompt:
        return f"It has {len(prompt)} characters. ✓"
    return f"<think>\nI must read it.\n</think>\n\nReading.\n{CALL}"


async def _chat(url: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    async with httpx2.AsyncClient(base_url=url, timeout=60) as client:
        body = {"model": "scripted", "messages": messages, "tools": [TOOL]}
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, answer.text
        return dict(answer.json()["choices"][0])


async def test_it_reasons_calls_a_tool_and_answers_the_result_in_a_long_window() -> None:
    async with scripted_stack(CHATML, _answer) as stack:
        messages: list[dict[str, Any]] = [{"role": "user", "content": "Read a.py. " * 4_000}]
        first = await _chat(stack.url, messages)
        message = first["message"]
        (call,) = message["tool_calls"]
        assert message["reasoning"] == "I must read it."
        assert message["content"].strip() == "Reading."
        assert call["function"]["name"] == "read"
        assert json.loads(call["function"]["arguments"]) == {"path": "a.py"}
        assert first["finish_reason"] == "tool_calls"
        result = {"role": "tool", "tool_call_id": call["id"], "content": "print(1)"}
        second = await _chat(stack.url, [*messages, message, result])
        assert second["message"]["content"].startswith("It has 4")
        assert second["finish_reason"] == "stop"


HARMONY = replace(
    CHATML,
    template=CHATML.template + "{# <|start|> <|channel|> <|call|> #}",
    plain_tokens=("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>"),
)
ORDERS = [
    # The last call is cut, and so it is text.
    (CHATML, f"<think>\nHm.\n</think>One.\n{CALL}\nTwo.{CALL}{CALL}\n{CALL[:20]}", "TXCXCCX"),
    (
        HARMONY,
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>commentary<|message|>One.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>commentary to=functions.read<|message|>{}<|call|>",
        "TXTC",
    ),
]


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
@pytest.mark.parametrize(("family", "said", "order"), ORDERS, ids=["hermes", "harmony"])
async def test_a_whole_answer_has_its_parts_in_the_order_of_the_stream(
    family: Family, said: str, order: str, path: str
) -> None:
    turns, tool = [{"role": "user", "content": "Go."}], {"name": "read", "type": "function"}
    body: dict[str, Any] = {"input": turns, "tools": [tool]}
    if path == "/v1/messages":
        tools = [{"name": "read", "input_schema": {"type": "object"}}]
        body = {"messages": turns, "tools": tools, "max_tokens": 500}
    async with (
        scripted_stack(family, lambda _: said) as stack,
        httpx2.AsyncClient(base_url=stack.url, timeout=60) as client,
    ):
        whole = (await client.post(path, json=body)).json()
        parts = whole.get("output") or whole["content"]
        kinds = [part["type"] for part in parts]
        answer = await client.post(path, json=body | {"stream": True})
        lines = answer.text.splitlines()
        events = [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: {")]
        begun = [event.get("item") or event.get("content_block") for event in events]
        begins = ("response.output_item.added", "content_block_start")
        streamed = [
            part["type"]
            for event, part in zip(events, begun, strict=True)
            if event["type"] in begins
        ]
        letters = {"reasoning": "T", "thinking": "T", "function_call": "C", "tool_use": "C"}
        assert kinds == streamed
        assert "".join(letters.get(kind, "X") for kind in kinds) == order


WORDS = " ".join(f"word{i}" for i in range(200))
JSON = json.dumps({"words": WORDS})
OBJECT = {
    "type": "json_schema",
    "json_schema": {
        "name": "words",
        "schema": {
            "type": "object",
            "properties": {"words": {"type": "string"}},
            "required": ["words"],
            "additionalProperties": False,
        },
    },
}


async def test_each_branch_has_its_constraint_after_its_own_reasoning() -> None:
    """Beams take no structured output, and none of the bounds of reasoning."""
    answer = f"<think>\nHm.\n</think>{JSON}"
    async with (
        scripted_stack(CHATML, lambda _: answer) as stack,
        httpx2.AsyncClient(base_url=stack.url, timeout=60) as client,
    ):
        body = {"messages": [{"role": "user", "content": "Go."}], "response_format": OBJECT, "n": 2}
        choices = (await client.post("/v1/chat/completions", json=body)).json()["choices"]
        said = [choice["message"] for choice in choices]
        assert [(one["reasoning"], one["content"]) for one in said] == [("Hm.", JSON)] * 2
        beams = {"messages": body["messages"], "n": 2, "use_beam_search": True}
        for fields in ({"response_format": OBJECT}, {"thinking_token_budget": 5}):
            refused = await client.post("/v1/chat/completions", json=beams | fields)
            named = refused.json()["error"]["param"]
            assert (refused.status_code, named in (*fields, "use_beam_search")) == (400, True)


@pytest.mark.parametrize(
    ("reasoning", "text", "fields"),
    [
        ("", WORDS, {}),
        (WORDS, JSON, {"response_format": OBJECT}),
        ("Hm.", JSON, {"response_format": OBJECT}),
    ],
    ids=["text", "reasoning before what is constrained", "what is constrained after reasoning"],
)
async def test_a_worker_that_takes_over_goes_on_with_the_same_text(
    reasoning: str, text: str, fields: dict[str, Any]
) -> None:
    answered = f"<think>\n{reasoning}\n</think>{text}" if reasoning else text
    async with (
        scripted_stack(CHATML, lambda _: answered, num_workers=2, step_ns=1_000_000) as stack,
        httpx2.AsyncClient(base_url=stack.url, timeout=60) as client,
    ):
        body = {"messages": [{"role": "user", "content": "Go."}], "stream": True, **fields}
        said, thought, is_killed = "", "", False
        async with client.stream("POST", "/v1/chat/completions", json=body) as answer:
            async for line in answer.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                event = json.loads(line[len("data: ") :])
                assert "error" not in event, event
                delta = event["choices"][0]["delta"]
                said += delta.get("content") or ""
                thought += delta.get("reasoning") or ""
                if len(said) + len(thought) > 300 and not is_killed:
                    is_killed = True
                    await stack.kill_busy_worker()
        assert (thought, said) == (reasoning, text)
        assert all(one.num_drawn > 100 for one in stack.executors)


@pytest.mark.parametrize("answer", ["no JSON", "<think>\nHm.\n</think>no JSON"])
async def test_a_script_that_breaks_a_constraint_ends_the_request_with_an_error(
    answer: str,
) -> None:
    async with (
        scripted_stack(CHATML, lambda _: answer) as stack,
        httpx2.AsyncClient(base_url=stack.url, timeout=60) as client,
    ):
        body = {
            "messages": [{"role": "user", "content": "Go."}],
            "response_format": {"type": "json_object"},
        }
        told = await client.post("/v1/chat/completions", json=body)
        assert told.status_code >= 500
        assert "script" in told.text

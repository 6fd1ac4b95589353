"""By chat, Responses and Messages: two calls at once, their results, the streamed answer."""

import asyncio
import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import asks the internet

import litellm
from demo_tools import (
    ANSWER,
    CITIES,
    DESCRIPTION,
    HTTP,
    MODEL,
    QUESTION,
    SCHEMA,
    THOUGHT,
    TOOL,
    WEATHER,
)

OPENAI = {"model": f"hosted_vllm/{MODEL}", "api_base": f"{HTTP}/v1", "api_key": "none"}
ANTHROPIC = {"model": f"anthropic/{MODEL}", "api_base": HTTP, "api_key": "none"}
FUNCTION = {"name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA}
QUESTIONS = [{"role": "user", "content": QUESTION}]
CALLED = [{"city": city} for city in CITIES]
RESULTS = [WEATHER[city] for city in CITIES]


def chat() -> list[str]:
    """Returns the pieces of the streamed answer, as the two below do."""
    body = {**OPENAI, "tools": [{"type": "function", "function": FUNCTION}]}
    (choice,) = litellm.completion(**body, messages=QUESTIONS).choices
    said = choice.message
    assert (said.reasoning_content.strip(), choice.finish_reason) == (THOUGHT, "tool_calls")
    assert [json.loads(call.function.arguments) for call in said.tool_calls] == CALLED
    results = [
        {"role": "tool", "tool_call_id": call.id, "content": result}
        for call, result in zip(said.tool_calls, RESULTS, strict=True)
    ]
    turns = [*QUESTIONS, said, *results]
    chunks = list(litellm.completion(**body, messages=turns, stream=True))
    assert chunks[-1].choices[0].finish_reason == "stop"
    return [chunk.choices[0].delta.content or "" for chunk in chunks]


def responses() -> list[str]:
    body = {**OPENAI, "tools": [{"type": "function", **FUNCTION}]}
    whole = litellm.responses(**body, input=QUESTION)
    reasoning, *calls = (item.model_dump(exclude_none=True) for item in whole.output)
    assert reasoning["content"][0]["text"].strip() == THOUGHT
    assert [json.loads(call["arguments"]) for call in calls] == CALLED
    results = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": result}
        for call, result in zip(calls, RESULTS, strict=True)
    ]
    turns = [*QUESTIONS, reasoning, *calls, *results]
    events = list(litellm.responses(**body, input=turns, stream=True))
    assert events[-1].type == "response.completed"
    return [event.delta for event in events if event.type == "response.output_text.delta"]


async def messages() -> list[str]:
    tool = {"name": TOOL, "description": DESCRIPTION, "input_schema": SCHEMA}
    body = {**ANTHROPIC, "max_tokens": 1000, "tools": [tool]}
    create = litellm.anthropic.messages.acreate
    whole = await create(**body, messages=QUESTIONS)
    thought, *calls = whole["content"]
    assert (thought["thinking"].strip(), whole["stop_reason"]) == (THOUGHT, "tool_use")
    assert [call["input"] for call in calls] == CALLED
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": result}
        for call, result in zip(calls, RESULTS, strict=True)
    ]
    said = {"role": "assistant", "content": whole["content"]}
    turns = [*QUESTIONS, said, {"role": "user", "content": results}]
    stream = await create(**body, messages=turns, stream=True)
    lines = b"".join([part async for part in stream]).decode().splitlines()
    events = [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: ")]
    assert events[-1]["type"] == "message_stop"
    return [event.get("delta", {}).get("text", "") for event in events]


async def main() -> None:
    for pieces in (chat(), responses(), await messages()):
        assert len(pieces) > 1
        assert "".join(pieces) == ANSWER


asyncio.run(main())

"""Text, usage, finish reason, stream order, logprobs, a tool call, a JSON schema, typed errors."""

import json

import openai
from demo import (
    ANSWER,
    BAD_TEMPERATURE,
    COMPLETION_TOKENS,
    HTTP,
    MESSAGES,
    MODEL,
    PROMPT_TOKENS,
    REFUSAL,
    SCHEMA,
)

client = openai.OpenAI(base_url=HTTP, api_key="none", max_retries=0)
GREEDY = {"model": MODEL, "messages": MESSAGES, "temperature": 0}

assert [model.id for model in client.models.list()] == [MODEL]

whole = client.chat.completions.create(**GREEDY, max_tokens=24, logprobs=True, top_logprobs=2)
(choice,) = whole.choices
assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
    PROMPT_TOKENS,
    COMPLETION_TOKENS,
)
assert all(token.token == token.top_logprobs[0].token for token in choice.logprobs.content)

*chunks, last = client.chat.completions.create(
    **GREEDY, max_tokens=24, stream=True, stream_options={"include_usage": True}
)
assert chunks[0].choices[0].delta.role == "assistant"
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
assert (last.choices, last.usage.completion_tokens) == ([], COMPLETION_TOKENS)

cut = client.chat.completions.create(**GREEDY, max_tokens=3).choices[0]
assert cut.finish_reason == "length"
assert ANSWER.startswith(cut.message.content)

tool = {"type": "function", "function": {"name": "describe", "parameters": SCHEMA}}
called = client.chat.completions.create(
    **GREEDY, max_tokens=100, tools=[tool], tool_choice="required"
).choices[0]
(call,) = called.message.tool_calls
assert (called.finish_reason, call.function.name) == ("tool_calls", "describe")
assert set(json.loads(call.function.arguments)) == {"city", "year"}

form = {"type": "json_schema", "json_schema": {"name": "city", "schema": SCHEMA, "strict": True}}
formed = client.chat.completions.create(**GREEDY, max_tokens=100, response_format=form)
assert set(json.loads(formed.choices[0].message.content)) == {"city", "year"}

for change, kind, param, text in (
    ({"temperature": BAD_TEMPERATURE}, openai.BadRequestError, "temperature", REFUSAL),
    ({"model": "another"}, openai.NotFoundError, "model", "another"),
):
    try:
        client.chat.completions.create(**GREEDY | change)
    except kind as error:
        assert error.param == param
        assert text in error.message
    else:
        raise AssertionError(f"{change} is taken")

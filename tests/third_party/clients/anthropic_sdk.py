"""Messages API: blocks, stream, thinking and two calls at once, results, counts, typed errors."""

import anthropic
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

client = anthropic.Anthropic(base_url=HTTP, api_key="none", max_retries=0)
MESSAGES = [{"role": "user", "content": QUESTION}]
TOOLS = [{"name": TOOL, "description": DESCRIPTION, "input_schema": SCHEMA}]
BODY = {"model": MODEL, "max_tokens": 1000, "tools": TOOLS}

(listed,) = client.models.list()
assert (listed.id, listed.display_name) == (MODEL, MODEL)

whole = client.messages.create(**BODY, messages=MESSAGES, thinking={"type": "adaptive"})
thought, *calls = whole.content
assert (thought.type, thought.thinking.strip()) == ("thinking", THOUGHT)
assert [(call.type, call.name, call.input) for call in calls] == [
    ("tool_use", TOOL, {"city": city}) for city in CITIES
]
assert len({call.id for call in calls}) == len(CITIES)
assert whole.stop_reason == "tool_use"

with client.messages.stream(**BODY, messages=MESSAGES, thinking={"type": "adaptive"}) as stream:
    kinds = [event.type for event in stream]
    streamed = stream.get_final_message()
assert (kinds[0], kinds[-1]) == ("message_start", "message_stop")
assert [block.model_dump(exclude={"id", "signature"}) for block in streamed.content] == [
    block.model_dump(exclude={"id", "signature"}) for block in whole.content
]
assert streamed.usage.output_tokens == whole.usage.output_tokens

results = [
    {"type": "tool_result", "tool_use_id": call.id, "content": WEATHER[call.input["city"]]}
    for call in calls
]
turns = [
    *MESSAGES,
    {"role": "assistant", "content": whole.content},
    {"role": "user", "content": results},
]
last = client.messages.create(**BODY, messages=turns)
assert ([block.text for block in last.content], last.stop_reason) == ([ANSWER], "end_turn")
counted = client.messages.count_tokens(model=MODEL, tools=TOOLS, messages=turns).input_tokens
assert counted == last.usage.input_tokens + last.usage.cache_read_input_tokens
with client.messages.stream(**BODY, messages=turns) as stream:
    texts = list(stream.text_stream)
assert len(texts) > 1
assert "".join(texts) == ANSWER

cut = client.messages.create(**BODY | {"max_tokens": 3}, messages=turns)
assert (cut.content[0].text, cut.stop_reason) == (ANSWER[:3], "max_tokens")

for change, kind, text in (
    ({"extra_body": {"temperature": 9.0}}, anthropic.BadRequestError, "temperature"),
    ({"model": "another"}, anthropic.NotFoundError, "another"),
):
    try:
        client.messages.create(**BODY | change, messages=MESSAGES)
    except kind as error:
        assert error.body["type"] == "error"
        assert text in error.message
    else:
        raise AssertionError(f"{change} is taken")

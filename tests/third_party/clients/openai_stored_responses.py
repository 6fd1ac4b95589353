"""Kept responses: turns of a loop, items, background, its stream from any event, cancel, delete."""

import openai
from demo_tools import (
    ANSWER,
    CITIES,
    DESCRIPTION,
    HTTP,
    MODEL,
    QUESTION,
    SCHEMA,
    TOOL,
    WEATHER,
)

client = openai.OpenAI(base_url=f"{HTTP}/v1", api_key="none", max_retries=0)
TOOLS = [{"type": "function", "name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA}]
BODY = {"model": MODEL, "tools": TOOLS}

first = client.responses.create(**BODY, input=QUESTION)
calls = [item for item in first.output if item.type == "function_call"]
results = [
    {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER[city]}
    for call, city in zip(calls, CITIES, strict=True)
]
last = client.responses.create(**BODY, input=results, previous_response_id=first.id)
assert last.output_text == ANSWER
assert last.previous_response_id == first.id
num_read = last.usage.input_tokens_details.cached_tokens
assert num_read >= first.usage.total_tokens // 32 * 32, (num_read, first.usage)

found = client.responses.retrieve(last.id)
assert found.to_dict() == last.to_dict()
items = list(client.responses.input_items.list(last.id, order="asc", limit=2))
assert [item.type for item in items if item.type != "reasoning"] == [
    "message",
    *["function_call"] * len(CITIES),
    *["function_call_output"] * len(CITIES),
]
client.responses.delete(first.id)
assert client.responses.retrieve(last.id).id == last.id

stream = client.responses.create(
    **BODY, input=results, previous_response_id=last.id, background=True, stream=True
)
begun = next(iter(stream))
stream.close()
assert (begun.type, begun.response.status) == ("response.created", "queued")
background_id = begun.response.id
events = list(client.responses.retrieve(background_id, stream=True, starting_after=0))
assert [event.sequence_number for event in events] == list(range(1, len(events) + 1))
assert events[-1].type == "response.completed"
again = list(client.responses.retrieve(background_id, stream=True, starting_after=0))
assert [event.to_dict() for event in again] == [event.to_dict() for event in events]
assert client.responses.cancel(background_id).status == "completed"

for missing in (first.id, "resp_0"):
    try:
        client.responses.retrieve(missing)
    except openai.NotFoundError as error:
        assert missing in error.message
    else:
        raise AssertionError(f"{missing} is there")

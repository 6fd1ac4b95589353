"""Responses API: items, reasoning, calls at once, order of the stream, `parse`, typed errors."""

import openai
from demo_tools import (
    ANSWER,
    CITIES,
    DESCRIPTION,
    FORM_QUESTION,
    HTTP,
    MODEL,
    QUESTION,
    SCHEMA,
    THOUGHT,
    TOOL,
    WEATHER,
)
from pydantic import BaseModel

client = openai.OpenAI(base_url=f"{HTTP}/v1", api_key="none", max_retries=0)
TOOLS = [{"type": "function", "name": TOOL, "description": DESCRIPTION, "parameters": SCHEMA}]
BODY = {"model": MODEL, "tools": TOOLS, "include": ["reasoning.encrypted_content"]}


class City(BaseModel):
    city: str


whole = client.responses.create(**BODY, input=QUESTION)
assert (whole.status, whole.store) == ("completed", True)
reasoning, *calls = whole.output
assert (reasoning.type, reasoning.content[0].text.strip()) == ("reasoning", THOUGHT)
assert [(call.type, call.name) for call in calls] == [("function_call", TOOL)] * len(CITIES)
parsed = client.responses.parse(**BODY, input=QUESTION).output[1:]
cities = [City.model_validate_json(call.arguments).city for call in calls]
assert cities == CITIES
assert [call.name for call in parsed] == [TOOL] * len(CITIES)

turns = [
    {"role": "user", "content": QUESTION},
    *whole.output,
    *(
        {"type": "function_call_output", "call_id": call.call_id, "output": WEATHER[city]}
        for call, city in zip(calls, cities, strict=True)
    ),
]
last = client.responses.create(**BODY, input=turns)
assert last.output_text == ANSWER
counted = client.responses.input_tokens.count(model=MODEL, tools=TOOLS, input=turns)
assert counted.input_tokens == last.usage.input_tokens

events = list(client.responses.create(**BODY, input=turns, stream=True))
assert [event.sequence_number for event in events] == list(range(len(events)))
assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
pieces = [event.delta for event in events if event.type == "response.output_text.delta"]
assert len(pieces) > 1
assert "".join(pieces) == events[-1].response.output_text == ANSWER

formed = client.responses.parse(model=MODEL, input=FORM_QUESTION, text_format=City)
assert formed.output_parsed == City(city=CITIES[0])
cut = client.responses.create(**BODY, input=turns, max_output_tokens=16)
assert (cut.status, cut.incomplete_details.reason) == ("incomplete", "max_output_tokens")
assert cut.output_text == ANSWER[:16]

for change, kind, text in (
    ({"temperature": 9.0}, openai.BadRequestError, "temperature"),
    ({"previous_response_id": "resp_0"}, openai.NotFoundError, "resp_0"),
    ({"model": "another"}, openai.NotFoundError, "another"),
):
    try:
        client.responses.create(**BODY | change, input=QUESTION)
    except kind as error:
        assert text in error.message
    else:
        raise AssertionError(f"{change} is taken")

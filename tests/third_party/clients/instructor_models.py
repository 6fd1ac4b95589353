"""Pydantic models from a JSON schema and from a tool call, usage, finish reason, a typed error."""

import instructor
import openai
from demo import BAD_TEMPERATURE, HTTP, MESSAGES, MODEL, PROMPT_TOKENS, REFUSAL
from instructor.core import InstructorRetryException
from pydantic import BaseModel, Field


class City(BaseModel):
    name: str = Field(max_length=20)
    year: int = Field(ge=0, le=3000)


sdk = openai.OpenAI(base_url=HTTP, api_key="none", max_retries=0)
GREEDY = {"model": MODEL, "messages": MESSAGES, "response_model": City, "max_tokens": 100}

for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    client = instructor.from_openai(sdk, mode=mode)
    city, raw = client.chat.completions.create_with_completion(
        **GREEDY, temperature=0, max_retries=1
    )
    assert city.name
    expected = "stop" if mode is instructor.Mode.JSON_SCHEMA else "tool_calls"
    assert raw.choices[0].finish_reason == expected
    assert raw.usage.prompt_tokens >= PROMPT_TOKENS
    assert 0 < raw.usage.completion_tokens < 100

try:
    client.chat.completions.create(**GREEDY, temperature=BAD_TEMPERATURE, max_retries=1)
except (openai.BadRequestError, InstructorRetryException) as error:
    assert REFUSAL in str(error)
else:
    raise AssertionError("a temperature of 9 is taken")

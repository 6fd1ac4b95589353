"""Text, usage, finish reason, the stream and its usage, a bound tool, `BadRequestError`."""

import openai
from demo import (
    ANSWER,
    BAD_TEMPERATURE,
    COMPLETION_TOKENS,
    HTTP,
    MODEL,
    PROMPT_TOKENS,
    QUESTION,
    REFUSAL,
)
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI

SETTINGS = {"model": MODEL, "base_url": HTTP, "api_key": "none", "max_retries": 0}
chat = ChatOpenAI(**SETTINGS, temperature=0, max_tokens=60, stream_usage=True)

whole = chat.invoke(QUESTION)
assert whole.content == ANSWER
assert whole.response_metadata["finish_reason"] == "stop"
assert whole.usage_metadata["input_tokens"] == PROMPT_TOKENS
assert whole.usage_metadata["output_tokens"] == COMPLETION_TOKENS

chunks = list(chat.stream(QUESTION))
assert "".join(chunk.content for chunk in chunks) == ANSWER
counted = [chunk.usage_metadata["output_tokens"] for chunk in chunks if chunk.usage_metadata]
assert counted == [COMPLETION_TOKENS]


@tool
def weather(city: str) -> str:
    """Returns the weather of a city."""
    return city


(call,) = chat.bind_tools([weather], tool_choice="weather").invoke(QUESTION).tool_calls
assert (call["name"], list(call["args"])) == ("weather", ["city"])

try:
    ChatOpenAI(**SETTINGS, temperature=BAD_TEMPERATURE).invoke(QUESTION)
except openai.BadRequestError as error:
    assert REFUSAL in error.message
else:
    raise AssertionError("a temperature of 9 is taken")

"""Text, usage, finish reason, order of the stream, LiteLLM's `BadRequestError`."""

import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # else the import asks the internet

import litellm
from demo import (
    ANSWER,
    BAD_TEMPERATURE,
    COMPLETION_TOKENS,
    HTTP,
    MESSAGES,
    MODEL,
    PROMPT_TOKENS,
    REFUSAL,
)

GREEDY = {
    "model": f"hosted_vllm/{MODEL}",
    "api_base": HTTP,
    "api_key": "none",
    "messages": MESSAGES,
    "temperature": 0,
    "max_tokens": 24,
    "num_retries": 0,
}

whole = litellm.completion(**GREEDY)
(choice,) = whole.choices
assert (choice.message.content, choice.finish_reason) == (ANSWER, "stop")
assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (
    PROMPT_TOKENS,
    COMPLETION_TOKENS,
)

chunks = list(litellm.completion(**GREEDY, stream=True))
assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == ANSWER
reasons = [chunk.choices[0].finish_reason for chunk in chunks]
assert reasons == [None] * (len(reasons) - 1) + ["stop"]

try:
    litellm.completion(**GREEDY | {"temperature": BAD_TEMPERATURE})
except litellm.BadRequestError as error:
    assert REFUSAL in error.message
else:
    raise AssertionError("a temperature of 9 is taken")

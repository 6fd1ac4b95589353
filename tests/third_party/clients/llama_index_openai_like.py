"""Text, usage and finish reason of a chat, order of the stream, a completion, a typed error."""

import itertools

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
from llama_index.core.llms import ChatMessage
from llama_index.llms.openai_like import OpenAILike


def make_model(*, is_chat: bool = True) -> OpenAILike:
    return OpenAILike(
        model=MODEL,
        api_base=HTTP,
        api_key="none",
        is_chat_model=is_chat,
        temperature=0.0,
        max_tokens=24,
        max_retries=0,
    )


messages = [ChatMessage(role="user", content=QUESTION)]
whole = make_model().chat(messages)
assert whole.message.content == ANSWER
assert whole.raw.choices[0].finish_reason == "stop"
assert (whole.raw.usage.prompt_tokens, whole.raw.usage.completion_tokens) == (
    PROMPT_TOKENS,
    COMPLETION_TOKENS,
)

texts = [chunk.message.content for chunk in make_model().stream_chat(messages)]
assert texts[-1] == ANSWER
assert all(later.startswith(text) for text, later in itertools.pairwise(texts))

assert make_model(is_chat=False).complete("The capital of France is").text.startswith(" Paris")

try:
    make_model().chat(messages, temperature=BAD_TEMPERATURE)
except openai.BadRequestError as error:
    assert REFUSAL in error.message
else:
    raise AssertionError("a temperature of 9 is taken")

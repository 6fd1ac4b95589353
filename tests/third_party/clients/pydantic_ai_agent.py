"""Text, usage, finish reason, stream order, a typed output by a tool call, `ModelHTTPError`."""

import asyncio

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
from pydantic import BaseModel, Field
from pydantic_ai import Agent
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class City(BaseModel):
    name: str = Field(max_length=20)


async def main() -> None:
    model = OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=HTTP, api_key="none"))
    greedy = {"temperature": 0.0, "max_tokens": 100}
    agent = Agent(model, model_settings=greedy)

    whole = await agent.run(QUESTION)
    assert whole.output == ANSWER
    response = whole.all_messages()[-1]
    assert response.finish_reason == "stop"
    assert (response.usage.input_tokens, response.usage.output_tokens) == (
        PROMPT_TOKENS,
        COMPLETION_TOKENS,
    )

    async with agent.run_stream(QUESTION) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER

    typed = await Agent(model, output_type=City, model_settings=greedy).run(QUESTION)
    assert isinstance(typed.output, City)

    try:
        await agent.run(QUESTION, model_settings={"temperature": BAD_TEMPERATURE})
    except ModelHTTPError as error:
        assert error.status_code == 400
        assert REFUSAL in str(error)
    else:
        raise AssertionError("a temperature of 9 is taken")


asyncio.run(main())

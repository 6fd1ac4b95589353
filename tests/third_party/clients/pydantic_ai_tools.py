"""By chat, Responses and Messages: a loop of two calls at once, its stream, a typed output."""

import asyncio

from demo_tools import ANSWER, CITIES, FORM, FORM_QUESTION, HTTP, MODEL, QUESTION, WEATHER
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.profiles import ModelProfile
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

asked: list[str] = []


class Form(BaseModel):
    city: str


def weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return WEATHER[city]


async def finish(model: Model) -> None:
    agent = Agent(model, tools=[weather])
    asked.clear()
    whole = await agent.run(QUESTION)
    assert (whole.output, sorted(asked)) == (ANSWER, sorted(CITIES))

    asked.clear()
    async with agent.run_stream(QUESTION) as stream:
        pieces = [piece async for piece in stream.stream_text(delta=True, debounce_by=None)]
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER
    assert sorted(asked) == sorted(CITIES)

    for output in (ToolOutput(Form), NativeOutput(Form)):
        formed = await Agent(model, output_type=output).run(FORM_QUESTION)
        assert formed.output == Form(**FORM)


async def main() -> None:
    provider = OpenAIProvider(base_url=f"{HTTP}/v1", api_key="none")
    for kind in (OpenAIChatModel, OpenAIResponsesModel):
        await finish(kind(MODEL, provider=provider))
    messages = AnthropicProvider(base_url=HTTP, api_key="none")
    profile = ModelProfile(supports_json_schema_output=True)  # else Claude's names alone have it
    await finish(AnthropicModel(MODEL, provider=messages, profile=profile))


asyncio.run(main())

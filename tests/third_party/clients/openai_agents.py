"""By Responses and by chat: a loop of two calls at once and their results, whole and streamed."""

import asyncio

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from demo_tools import ANSWER, CITIES, HTTP, MODEL, QUESTION, WEATHER
from openai import AsyncOpenAI

asked: list[str] = []


@function_tool
def weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return WEATHER[city]


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=f"{HTTP}/v1", api_key="none", max_retries=0)
    for kind in (OpenAIResponsesModel, OpenAIChatCompletionsModel):
        agent = Agent(name="clerk", tools=[weather], model=kind(MODEL, client))
        asked.clear()
        whole = await Runner.run(agent, QUESTION)
        assert (whole.final_output, sorted(asked)) == (ANSWER, sorted(CITIES))

        asked.clear()
        streamed = Runner.run_streamed(agent, QUESTION)
        pieces = [
            event.data.delta
            async for event in streamed.stream_events()
            if event.type == "raw_response_event"
            and event.data.type == "response.output_text.delta"
        ]
        assert streamed.final_output == ANSWER
        assert len(pieces) > 1
        assert "".join(pieces).endswith(ANSWER)
        assert sorted(asked) == sorted(CITIES)


asyncio.run(main())

"""An agent that calls two tools at once and gives the results to the model; its streamed answer."""

import asyncio

from demo_tools import ANSWER, CITIES, HTTP, MODEL, QUESTION, WEATHER
from llama_index.core.agent.workflow import AgentStream, FunctionAgent
from llama_index.llms.openai_like import OpenAILike

asked: list[str] = []


def weather(city: str) -> str:
    """Returns the weather of a city."""
    asked.append(city)
    return WEATHER[city]


async def main() -> None:
    model = OpenAILike(
        model=MODEL,
        api_base=f"{HTTP}/v1",
        api_key="none",
        is_chat_model=True,
        is_function_calling_model=True,
        max_retries=0,
    )
    for is_streamed in (False, True):
        asked.clear()
        agent = FunctionAgent(tools=[weather], llm=model, streaming=is_streamed)
        running = agent.run(QUESTION)
        events = [event async for event in running.stream_events()]
        whole = await running
        assert str(whole) == ANSWER
        assert sorted(asked) == sorted(CITIES)
        assert [call.tool_kwargs["city"] for call in whole.tool_calls] == CITIES
        pieces = [event.delta for event in events if isinstance(event, AgentStream)]
        if is_streamed:
            assert len(pieces) > 1
            assert "".join(pieces).endswith(ANSWER)


asyncio.run(main())

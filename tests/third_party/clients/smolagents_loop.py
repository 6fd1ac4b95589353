"""An agent that calls two tools at once and ends by `final_answer`, whole and streamed."""

from demo_tools import ANSWER, CITIES, HTTP, MODEL, QUESTION, WEATHER
from smolagents import FinalAnswerStep, OpenAIModel, ToolCallingAgent, tool

asked: list[str] = []


@tool
def weather(city: str) -> str:
    """Returns the weather of a city.

    Args:
        city: The name of the city.
    """
    asked.append(city)
    return WEATHER[city]


for is_streamed in (False, True):
    model = OpenAIModel(MODEL, api_base=f"{HTTP}/v1", api_key="none")
    agent = ToolCallingAgent(
        tools=[weather], model=model, stream_outputs=is_streamed, max_steps=4, verbosity_level=0
    )
    asked.clear()
    *_, last = agent.run(QUESTION, stream=True)
    assert isinstance(last, FinalAnswerStep)
    assert last.output == ANSWER
    assert sorted(asked) == sorted(CITIES)
    assert [len(step.tool_calls or []) for step in agent.memory.steps[1:]] == [2, 1]

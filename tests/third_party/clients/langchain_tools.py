"""By chat and by Responses: two bound tools' calls at once, their results, the streamed answer."""

from demo_tools import ANSWER, CITIES, FORM, FORM_QUESTION, HTTP, MODEL, QUESTION, WEATHER
from langchain_core.messages import HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Form(BaseModel):
    city: str


@tool
def weather(city: str) -> str:
    """Returns the weather of a city."""
    return WEATHER[city]


for is_responses in (False, True):
    chat = ChatOpenAI(
        model=MODEL,
        base_url=f"{HTTP}/v1",
        api_key="none",
        max_retries=0,
        use_responses_api=is_responses,
    )
    bound = chat.bind_tools([weather])
    asked = bound.invoke(QUESTION)
    assert [(call["name"], call["args"]) for call in asked.tool_calls] == [
        ("weather", {"city": city}) for city in CITIES
    ]
    results = [weather.invoke(call) for call in asked.tool_calls]
    turns = [HumanMessage(QUESTION), asked, *results]
    assert bound.invoke(turns).text == ANSWER
    pieces = [chunk.text for chunk in bound.stream(turns)]
    assert len(pieces) > 1
    assert "".join(pieces) == ANSWER
    for method in ("json_schema", "function_calling"):
        formed = chat.with_structured_output(Form, method=method).invoke(FORM_QUESTION)
        assert formed == Form(**FORM)

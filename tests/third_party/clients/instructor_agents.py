"""By Responses and by Messages: a Pydantic model from a call of a tool."""

import anthropic
import instructor
import openai
from demo_tools import FORM, FORM_QUESTION, HTTP, MODEL
from pydantic import BaseModel


class Form(BaseModel):
    city: str


BODY = {
    "model": MODEL,
    "messages": [{"role": "user", "content": FORM_QUESTION}],
    "response_model": Form,
}
responses = instructor.from_openai(
    openai.OpenAI(base_url=f"{HTTP}/v1", api_key="none", max_retries=0),
    mode=instructor.Mode.RESPONSES_TOOLS,
)
messages = instructor.from_anthropic(
    anthropic.Anthropic(base_url=HTTP, api_key="none", max_retries=0),
    mode=instructor.Mode.ANTHROPIC_TOOLS,
)
for client, bound in ((responses, {}), (messages, {"max_tokens": 1000})):
    formed = client.chat.completions.create(**BODY, **bound, max_retries=1)
    assert isinstance(formed, Form)
    assert formed.model_dump() == FORM

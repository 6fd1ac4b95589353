"""What the command lines of agents send is served as it is."""

import json

import httpx2
import pytest

from tests.agents.families import CHATML
from tests.agents.recorded_requests import recorded
from tests.agents.stack import scripted_stack


@pytest.mark.parametrize(
    "name", ["claude_code", "codex", "opencode", "qwen_code", "qwen_code_memory"]
)
async def test_a_recorded_request_is_answered(name: str) -> None:
    request = recorded(name)
    async with (
        scripted_stack(CHATML, lambda _: "It is done.") as stack,
        httpx2.AsyncClient(base_url=stack.url, timeout=60) as client,
    ):
        answer = await client.request(
            request.method, request.path, headers=request.headers, json=request.body
        )
        assert answer.status_code == 200, answer.text
        assert _said(answer.text) == "It is done."


async def test_the_question_before_a_conversation_is_answered() -> None:
    request = recorded("claude_code_head")
    async with (
        scripted_stack(CHATML, lambda _: "") as stack,
        httpx2.AsyncClient(base_url=stack.url) as client,
    ):
        answer = await client.request(request.method, request.path, headers=request.headers)
        assert answer.status_code == 200


def _said(stream: str) -> str:
    """Returns the text of a stream's events, of any of the APIs."""
    said = ""
    for line in stream.splitlines():
        if not line.startswith("data: {"):
            continue
        match json.loads(line.removeprefix("data: ")):
            case {"choices": [{"delta": {"content": str(text)}}]}:
                said += text
            case {"type": "response.output_text.delta", "delta": str(text)}:
                said += text
            case {"type": "content_block_delta", "delta": {"text": str(text)}}:
                said += text
    return said

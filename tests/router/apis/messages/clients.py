"""The official SDK of the Messages API, against a router with a fake scheduler."""

import contextlib
import json
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import anthropic
import httpx2
from anthropic.types import Message, RawMessageStreamEvent
from anthropic.types.beta import BetaMessage, BetaRawMessageStreamEvent
from pydantic import TypeAdapter

from tests.router.apis.openai.clients import MODEL, Http, make_http
from tests.router.fakes import make_tokenizer
from tests.waiting import EVENT_S

PATH = "/v1/messages"
HI: Any = [{"role": "user", "content": "Hi"}]
BODY: dict[str, Any] = {"model": MODEL, "max_tokens": 64, "messages": HI}
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"name": "get_weather", "description": "Tells the weather", "input_schema": SCHEMA}
CALL = '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}}</tool_call>'
_UNIONS: Any = (RawMessageStreamEvent, BetaRawMessageStreamEvent)
_EVENTS: list[TypeAdapter[Any]] = [TypeAdapter(kind) for kind in _UNIONS]


class Messages(NamedTuple):
    """A router, and the ways to ask it."""

    http: Http
    sdk: anthropic.AsyncAnthropic

    async def post(self, path: str = PATH, **fields: Any) -> httpx2.Response:
        """Posts a body without what is None of it."""
        headers = fields.pop("headers", {})
        body = {key: value for key, value in (BODY | fields).items() if value is not None}
        return await self.http.raw.post(path, json=body, headers=headers)

    async def whole(self, **fields: Any) -> dict[str, Any]:
        answer = await self.post(**fields)
        assert answer.status_code == 200, answer.text
        read: dict[str, Any] = answer.json()
        Message.model_validate(read)
        BetaMessage.model_validate(read)
        return read

    async def events(self, **fields: Any) -> list[dict[str, Any]]:
        answer = await self.post(stream=True, **fields)
        assert answer.status_code == 200, answer.text
        return events_of(answer.text)

    async def prompt(self, **fields: Any) -> str:
        """Returns what the scheduler was sent last, as text."""
        await self.whole(**fields)
        ids = self.http.stack.scheduler.added[-1].prompt_token_ids
        return await make_tokenizer().decode(ids, skip_special_tokens=False)


def events_of(stream: str) -> list[dict[str, Any]]:
    """Returns the events, each of which is of its type in the SDK and named by it."""
    *written, rest = stream.split("\n\n")
    assert not rest
    events = []
    for one in written:
        name, data = one.split("\n")
        event = json.loads(data.removeprefix("data: "))
        assert name == f"event: {event['type']}"
        if event["type"] not in ("ping", "error"):  # the SDK has no types of these
            for kind in _EVENTS:
                kind.validate_python(event)
        events.append(event)
    return events


@contextlib.asynccontextmanager
async def make_messages(script: Any = None, **config: Any) -> AsyncIterator[Messages]:
    async with make_http(script, **config) as http:
        sdk = anthropic.AsyncAnthropic(
            base_url=str(http.raw.base_url), api_key="none", max_retries=0, timeout=EVENT_S
        )
        async with sdk:
            yield Messages(http, sdk)

"""How long a body lives, and the place of a large one among those that are parsed."""

import asyncio
import gc
import json
from typing import Any

import pytest
from starlette.requests import Request

from signalbox_router.apis.openai.bodies.body_parser import SMALL_BODY_BYTES
from signalbox_router.apis.openai.bodies.body_reader import BodyReader
from signalbox_router.apis.openai.requests.types import Body
from tests.router.apis.openai.clients import HI, Http
from tests.waiting import EVENT_S, eventually


def num_bodies() -> int:
    return sum(issubclass(type(one), Body) for one in gc.get_objects())


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/completions", {"prompt": "Hi"}),
        ("/v1/completions", {"prompt": "Hi", "stream": True}),
        ("/v1/completions", {"prompt": "Hi", "n": -1}),
        ("/v1/chat/completions", {"messages": HI}),
        ("/tokenize", {"prompt": "Hi"}),
        ("/detokenize", {"tokens": [1]}),
    ],
)
async def test_a_body_dies_with_its_request_and_not_with_its_connection(
    http: Http, path: str, body: dict[str, Any]
) -> None:
    before = num_bodies()
    gc.disable()
    try:
        await http.raw.post(path, json=body)  # its connection stays open
        await eventually(lambda: num_bodies() == before)
    finally:
        gc.enable()


async def test_a_request_that_ends_as_its_turn_comes_leaves_its_place() -> None:
    reader = BodyReader(max_bytes=1 << 20, refuses_unknown=False)
    messages = [
        {"type": "http.request", "body": json.dumps({"a": "a" * SMALL_BODY_BYTES}).encode()}
    ]

    async def read() -> str:
        unread = iter(messages)

        async def receive() -> Any:
            return next(unread, None) or await asyncio.Event().wait()

        headers = [(b"content-type", b"application/json")]
        request = Request({"type": "http", "method": "POST", "headers": headers}, receive)
        return (await reader.read(request, Body, lambda body: "read"))[1]

    for num_turns in [*range(10)] * 3:
        reading = asyncio.create_task(read())
        for _ in range(num_turns):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    async with asyncio.timeout(EVENT_S):
        assert {*await asyncio.gather(read(), read(), read())} == {"read"}

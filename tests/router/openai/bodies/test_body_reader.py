"""How long a body lives."""

import gc
from typing import Any

import pytest

from router.openai.requests.types import Body
from tests.router.openai.clients import HI, Http
from tests.waiting import eventually


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

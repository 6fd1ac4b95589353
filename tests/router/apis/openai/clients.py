"""The official SDK, against a router with a fake scheduler."""

import contextlib
import logging
from collections.abc import AsyncIterator, Iterator
from typing import Any, NamedTuple

import httpx2
import openai
from pydantic import BaseModel

from signalbox_router.apis.messages.routes import MessagesApi
from signalbox_router.apis.openai.adapter_routes import AdapterApi
from signalbox_router.apis.openai.pooling_routes import PoolingApi
from signalbox_router.apis.openai.routes import Api
from signalbox_router.apis.stored_responses.routes import StoredResponsesApi
from tests.router.apis.inference.test_chat import TEMPLATE, writing
from tests.router.fakes import make_files
from tests.router.stack import Stack, make_stack
from tests.waiting import EVENT_S

HI = [{"role": "user", "content": "Hi"}]
MODEL = "tiny"
JSON_TYPE = {"content-type": "application/json"}
BODIES = {
    route.path: route.body
    for api in (Api, StoredResponsesApi, MessagesApi, PoolingApi, AdapterApi)
    for route in api.ROUTES
    if route.body is not None
}
"""The type of each path's body."""


class Http(NamedTuple):
    """A router, and the ways to ask it."""

    stack: Stack
    sdk: openai.AsyncOpenAI
    raw: httpx2.AsyncClient

    async def complete(self, prompt: Any = "Hi", **fields: Any) -> Any:
        return checked(await self.sdk.completions.create(model=MODEL, prompt=prompt, **fields))

    async def chat(self, messages: Any = HI, **fields: Any) -> Any:
        create: Any = self.sdk.chat.completions.create
        return checked(await create(model=MODEL, messages=messages, **fields))

    async def chat_chunks(self, messages: Any = HI, **fields: Any) -> list[Any]:
        create: Any = self.sdk.chat.completions.create
        stream = await create(model=MODEL, messages=messages, stream=True, **fields)
        return [checked(chunk) async for chunk in stream]

    async def completion_chunks(self, prompt: Any = "Hi", **fields: Any) -> list[Any]:
        create: Any = self.sdk.completions.create
        stream = await create(model=MODEL, prompt=prompt, stream=True, **fields)
        return [_checked_completion(chunk) async for chunk in stream]


def checked(answer: Any) -> Any:
    """Returns what the SDK read; it reads anything, so its types are applied once more."""
    assert isinstance(answer, BaseModel)
    type(answer).model_validate(answer.model_dump())
    return answer


def _checked_completion(chunk: Any) -> Any:
    """The SDK's type is that of the whole answer, which has a reason; events need not."""
    fields = chunk.model_dump()
    for choice in fields["choices"]:
        choice["finish_reason"] = choice["finish_reason"] or "stop"
    type(chunk).model_validate(fields)
    return chunk


class _Bugs(logging.Handler):
    """Keeps the tracebacks of requests that were answered with 500 because of an exception."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.tracebacks: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.exc_info:
            self.tracebacks.append(self.format(record))


@contextlib.contextmanager
def no_bugs() -> Iterator[None]:
    """Fails if an exception became a 500, whatever the test looks at; shows its traceback."""
    bugs, log = _Bugs(), logging.getLogger("uvicorn.error")
    log.addHandler(bugs)
    try:
        yield
    except BaseException as failure:
        for traceback in bugs.tracebacks:
            failure.add_note(f"the server has failed: {traceback}")
        raise
    finally:
        log.removeHandler(bugs)
    assert not bugs.tracebacks, "\n".join(bugs.tracebacks)


@contextlib.asynccontextmanager
async def make_http(
    script: Any = None, *, has_bugs: bool = False, **config: Any
) -> AsyncIterator[Http]:
    """Without a script every request is answered with "ok".

    Args:
        has_bugs: whether exceptions may become answers with 500.
    """
    config = {"max_model_len": 2048, "files": make_files(chat_template=TEMPLATE)} | config
    async with contextlib.AsyncExitStack() as exits:
        if not has_bugs:
            exits.enter_context(no_bugs())
        stack = await exits.enter_async_context(
            make_stack(script or writing("ok"), http_port=0, **config)
        )
        assert stack.router.http is not None
        root = f"http://{stack.router.http.address}"
        sdk = openai.AsyncOpenAI(
            base_url=f"{root}/v1", api_key="none", max_retries=0, timeout=EVENT_S
        )
        raw = httpx2.AsyncClient(base_url=root, timeout=EVENT_S, headers=JSON_TYPE)
        async with sdk, raw:
            yield Http(stack, sdk, raw)

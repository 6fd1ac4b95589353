"""Writes answers to HTTP clients, and ends the generation of a client that has disconnected."""

import asyncio
import logging
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Awaitable,
    Callable,
    Coroutine,
    Mapping,
)
from contextlib import aclosing, suppress
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from contract.errors import Internal, RpcError
from router.openai.multi_prompt import Part, first_and_rest
from router.openai.requests.errors import error_body, error_headers, status_of
from router.openai.requests.types import Body
from router.openai.response_fields import DONE, to_event, to_json

logger = logging.getLogger(__name__)

Headers = Mapping[str, str]
T = TypeVar("T")


def json_response(body: object, *, status: int = 200, headers: Headers | None = None) -> Response:
    return json_content(to_json(body), status=status, headers=headers)


def json_content(content: bytes, *, status: int = 200, headers: Headers | None = None) -> Response:
    """Returns a response of content that is JSON already."""
    return Response(content, status, headers=headers, media_type="application/json")


def error_response(error: RpcError, body: Body | None = None) -> Response:
    """Returns an error's response; `body` is the request's, if it could be read."""
    headers = error_headers(error)
    return json_response(error_body(error, body), status=status_of(error), headers=headers)


class GeneratedResponse(Response):
    """Generates and writes an answer. A client that disconnects ends the generation at any
    point.

    The status is sent with the first tokens: a request that fails in the queue gets its error
    status, streamed or not.
    """

    def __init__(
        self,
        parts: AsyncGenerator[Part],
        *,
        body: Body,
        whole: Callable[[AsyncIterator[Part]], Awaitable[object]] | None = None,
        events: Callable[[AsyncIterator[Part]], AsyncIterator[bytes]] | None = None,
        headers: Headers,
    ) -> None:
        """Exactly one of `whole` and `events` is set; `body` is the request's."""
        media_type = "application/json" if whole else "text/event-stream"
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._body = body
        self._whole = whole
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await until_disconnected(receive, self._write(scope, receive, send))

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._parts):
            if self._whole is not None:
                await json_response(await self._whole(self._parts), headers=dict(self.headers))(
                    scope, receive, send
                )
                return
            parts = await first_and_rest(self._parts)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            assert self._events is not None
            await _write_events(self._events(parts), send, body=self._body)


async def _write_events(events: AsyncIterator[bytes], send: Send, *, body: Body) -> None:
    """Writes the events, then an event with the error if there is one, then [DONE]."""

    async def write(content: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": content, "more_body": more})

    try:
        async for event in events:
            if event:  # the end of a request may add no event
                await write(event)
    except RpcError as error:
        await write(to_event(error_body(error, body)))
    except Exception:
        logger.exception("a stream failed")
        await write(to_event(error_body(Internal("internal error; the server's log says more"))))
    await write(DONE, more=False)


async def until_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Returns the work's result. If the client leaves, cancels the work and raises
    ClientDisconnect."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientDisconnect
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

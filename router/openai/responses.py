"""Writes answers to HTTP clients, and stops working for one that has left."""

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
from contextlib import aclosing
from typing import Any

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from router.openai.answers import DONE, to_event, to_json
from router.openai.errors import error_body, error_headers, status_of
from router.openai.merge import Part, first_and_rest
from router.openai.types import Body
from rpc.errors import Internal, RpcError

logger = logging.getLogger(__name__)

Headers = Mapping[str, str]


def json_response(body: object, *, status: int = 200, headers: Headers | None = None) -> Response:
    content = to_json(body)
    return Response(content, status, headers=headers, media_type="application/json")


def error_response(error: RpcError, body: Body | None = None) -> Response:
    """Answers the request that had this body, if it could be read."""
    headers = error_headers(error)
    return json_response(error_body(error, body), status=status_of(error), headers=headers)


class GeneratedResponse(Response):
    """Generates and writes. A client that disconnects ends the generation, whatever it waits for.

    The status is sent when the first tokens are there: a request that fails in the queue fails with
    its status, streamed or not.
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
        """Exactly one of `whole` and `events`; `body` is what was asked."""
        media_type = "application/json" if whole else "text/event-stream"
        super().__init__(headers=headers, media_type=media_type)
        del self.headers["content-length"]
        self._parts = parts
        self._body = body
        self._whole = whole
        self._events = events

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _until_disconnected(receive, self._write(scope, receive, send))

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
    """Ends with [DONE], after an event with the error if there is one."""

    async def write(content: bytes, *, more: bool = True) -> None:
        await send({"type": "http.response.body", "body": content, "more_body": more})

    try:
        async for event in events:
            if event:  # the end of a request may bring nothing new
                await write(event)
    except RpcError as error:
        await write(to_event(error_body(error, body)))
    except Exception:
        logger.exception("a stream failed")
        await write(to_event(error_body(Internal("internal error; the server's log says more"))))
    await write(DONE, more=False)


async def _until_disconnected(receive: Receive, work: Coroutine[Any, Any, None]) -> None:
    """Runs the work to its end, or until the client leaves."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(receive))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass

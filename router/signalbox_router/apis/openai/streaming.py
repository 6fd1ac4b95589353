"""Writes answers to HTTP clients, and ends the generation of a client that has disconnected."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import aclosing, suppress
from typing import Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from signalbox_contract.errors import Internal, RpcError
from signalbox_router.apis.openai.requests.errors import error_body, error_headers, status_of
from signalbox_router.apis.openai.requests.types import Body
from signalbox_router.apis.openai.response_fields import DONE, to_event, to_json
from signalbox_router.requests.active_request import Update
from signalbox_rpc.http.disconnection import until_disconnected

logger = logging.getLogger(__name__)

Headers = Mapping[str, str]

NOT_CACHED = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of streams; the second makes nginx pass each event on at once."""
BODY_SENDER = "signalbox.body_sender"
"""Key of a scope: the function that sends the messages of a body. Whatever lies above it looks at
the head of an answer alone, and passes each message of the body on."""


class ResponseWriter(Protocol):
    """Converts the updates of one HTTP request to OpenAI's shape."""

    async def whole(self, updates: AsyncIterator[Update]) -> object:
        """Returns the answer that is not streamed."""
        ...

    def events(self, update: Update) -> bytes:
        """Returns the bytes to send at once: an event for each sequence that has new output."""
        ...

    def last_event(self) -> bytes:
        """Returns the event that follows all updates; empty if there is none."""
        ...


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
        updates: AsyncGenerator[Update],
        answer: ResponseWriter,
        *,
        body: Body,
        is_streamed: bool,
        headers: Headers,
    ) -> None:
        """`body` is the request's."""
        media_type = "text/event-stream" if is_streamed else "application/json"
        uncached = NOT_CACHED if is_streamed else {}
        super().__init__(headers={**headers, **uncached}, media_type=media_type)
        del self.headers["content-length"]
        self._updates = updates
        self._answer = answer
        self._body = body
        self._is_streamed = is_streamed

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await until_disconnected(receive, self._write(scope, receive, send))

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._updates) as updates:
            if not self._is_streamed:
                content = await self._answer.whole(updates)
                await json_response(content, headers=dict(self.headers))(scope, receive, send)
                return
            first = await anext(updates)
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            await self._write_events(first, updates, scope.get(BODY_SENDER, send))

    async def _write_events(self, first: Update, rest: AsyncGenerator[Update], send: Send) -> None:
        """Writes the events, then an event with the error if there is one, then [DONE]."""
        events = self._answer.events
        try:
            if content := events(first):
                await send(_part(content))
            async for update in rest:
                if content := events(update):  # the end of a request may add no event
                    await send(_part(content))
            last = self._answer.last_event()
        except RpcError as error:
            last = to_event(error_body(error, self._body))
        except Exception:
            logger.exception("a stream failed")
            last = to_event(error_body(Internal("internal error; the server's log says more")))
        if last:
            await send(_part(last))
        await send({"type": "http.response.body", "body": DONE, "more_body": False})


def _part(content: bytes) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": True}

"""Writes answers to HTTP clients, and ends the generation of a client that has disconnected."""

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from typing import ClassVar, Protocol

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from signalbox_contract.errors import Internal, RpcError
from signalbox_router.apis.openai.error_shape import OPENAI_ERRORS, SCOPE_KEY, ErrorWriter
from signalbox_router.apis.openai.requests.types import Body, StreamableBody
from signalbox_router.apis.openai.response_fields import to_json
from signalbox_router.requests.active_request import Update
from signalbox_rpc.http.disconnection import until_disconnected

logger = logging.getLogger(__name__)

Headers = Mapping[str, str]

NOT_CACHED = {"cache-control": "no-cache", "x-accel-buffering": "no"}
"""Headers of streams; the second makes nginx pass each event on at once."""
PATIENCE_S = 1.0
"""Seconds without an update after which a stream of an API with an event for that begins."""
WAIT_S = 15.0
"""Seconds between two such events: proxies cut connections that are idle for 30 to 60."""
BODY_SENDER = "signalbox.body_sender"
"""Key of a scope: the function that sends the messages of a body. Whatever lies above it looks at
the head of an answer alone, and passes each message of the body on."""


class ResponseWriter(Protocol):
    """Converts the updates of one HTTP request to the shape of an API."""

    says_it_waits: ClassVar[bool]
    """True if a stream begins with `waiting` when there is no update for a second."""
    end_of_stream: ClassVar[bytes]
    """Bytes that a stream ends with, in success and failure."""

    async def whole(self, updates: AsyncIterator[Update]) -> object:
        """Returns the answer that is not streamed."""
        ...

    def events(self, update: Update) -> bytes:
        """Returns the bytes to send at once: an event for each sequence that has new output."""
        ...

    async def last_event(self) -> bytes:
        """Returns the event that follows all updates; empty if there is none."""
        ...

    def waiting(self) -> bytes:
        """Returns the event for a client whose first update is not there yet."""
        ...

    def failure(self, error: RpcError, body: Body | None) -> bytes:
        """Returns the last event of a stream that has begun and fails; `body` is the request's."""
        ...


def json_response(body: object, *, status: int = 200, headers: Headers | None = None) -> Response:
    return json_content(to_json(body), status=status, headers=headers)


def json_content(content: bytes, *, status: int = 200, headers: Headers | None = None) -> Response:
    """Returns a response of content that is JSON already."""
    return Response(content, status, headers=headers, media_type="application/json")


class ErrorResponse(Response):
    """An error, in the shape of the API that the request was for."""

    def __init__(self, error: RpcError, body: Body | None = None) -> None:
        """`body` is the request's, if it could be read."""
        super().__init__()
        self._error, self._body = error, body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        writer: ErrorWriter = scope.get(SCOPE_KEY, OPENAI_ERRORS)
        await writer.response(self._error, self._body, scope)(scope, receive, send)


class GeneratedResponse(Response):
    """Generates and writes an answer. A client that disconnects ends the generation at any
    point.

    The status is sent with the first tokens: a request that fails in the queue gets its error
    status, streamed or not. A stream of an API that says that it waits has a second for this.
    """

    def __init__(
        self,
        updates: AsyncGenerator[Update],
        answer: ResponseWriter,
        *,
        body: StreamableBody,
        headers: Headers,
    ) -> None:
        """`body` is the request's."""
        media_type = "text/event-stream" if body.stream else "application/json"
        uncached = NOT_CACHED if body.stream else {}
        super().__init__(headers={**headers, **uncached}, media_type=media_type)
        del self.headers["content-length"]
        self._updates = updates
        self._answer = answer
        self._body = body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(ClientDisconnect):
            await until_disconnected(receive, self._write(scope, receive, send))

    async def _write(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._updates) as updates:
            if not self._body.stream:
                content = await self._answer.whole(updates)
                await json_response(content, headers=dict(self.headers))(scope, receive, send)
                return
            await self._write_events(updates, _Head(self.raw_headers, send), scope, send)

    async def _write_events(
        self, updates: AsyncGenerator[Update], head: "_Head", scope: Scope, send: Send
    ) -> None:
        """Writes the events, an event with the error if there is one, and the end of streams."""
        events, send = self._answer.events, scope.get(BODY_SENDER, send)
        try:
            if self._answer.says_it_waits:
                async with self._waiting(head, send):
                    first = await anext(updates)
            else:
                first = await anext(updates)
            await head.send()
            if content := events(first):
                await send(_part(content))
            async for update in updates:
                if content := events(update):  # the end of a request may add no event
                    await send(_part(content))
            last = await self._answer.last_event()
        except Exception as error:
            if not head.is_sent:
                raise
            last = self._failure(error)
        ending = last + self._answer.end_of_stream
        await send({"type": "http.response.body", "body": ending, "more_body": False})

    def _failure(self, error: Exception) -> bytes:
        if isinstance(error, RpcError):
            return self._answer.failure(error, self._body)
        logger.error("a stream failed", exc_info=error)
        return self._answer.failure(Internal("internal error; the server's log says more"), None)

    @asynccontextmanager
    async def _waiting(self, head: "_Head", send: Send) -> AsyncIterator[None]:
        """Sends the events of a stream that waits while the block runs.

        The block runs in the caller's task, because the log lines of a request are a task's.
        """
        is_over = asyncio.Event()
        waiting = asyncio.ensure_future(self._say_it_waits(head, send, is_over))
        try:
            yield
        finally:
            is_over.set()
            await waiting

    async def _say_it_waits(self, head: "_Head", send: Send, is_over: asyncio.Event) -> None:
        wait_s = PATIENCE_S
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(wait_s):
                    await is_over.wait()
                return
            await head.send()
            await send(_part(self._answer.waiting()))
            wait_s = WAIT_S


class _Head:
    """The head of a stream, which is sent once."""

    def __init__(self, raw_headers: Sequence[tuple[bytes, bytes]], send: Send) -> None:
        self.is_sent = False
        self._message = {"type": "http.response.start", "status": 200, "headers": raw_headers}
        self._send = send

    async def send(self) -> None:
        if not self.is_sent:
            self.is_sent = True
            await self._send(self._message)


def _part(content: bytes) -> Message:
    return {"type": "http.response.body", "body": content, "more_body": True}

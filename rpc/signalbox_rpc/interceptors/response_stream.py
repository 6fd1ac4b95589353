"""Writes the responses of one stream, and notices a client that does not read them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing
from typing import Any

Write = Callable[[Any], Awaitable[None]]


async def write_all(
    responses: AsyncGenerator[Any, None], writing: AbstractContextManager[Write]
) -> None:
    """Writes all responses, and closes their generator."""
    with writing as write:
        async with aclosing(responses):
            async for response in responses:
                await write(response)


class ClientStalled(Exception):
    """The client has read nothing for too long; the message gives the seconds."""


class StallGuard:
    """Bounds the writes of one stream, with one timer for all of them.

    A timeout for each write would cost as much as the write.

    Args:
        begin: called before the first write, within its time.
    """

    def __init__(
        self, timeout_s: float, write: Write, *, begin: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._timeout_s = timeout_s
        self._write = write
        self._begin = begin
        self._loop = asyncio.get_running_loop()
        self._writing_since: float | None = None
        self._writer: asyncio.Task[Any] | None = None
        self._has_stalled = False
        self._timer = self._loop.call_later(timeout_s, self._look)

    async def write(self, message: Any) -> None:
        """Writes one message. Raises ClientStalled."""
        self._writer, self._writing_since = asyncio.current_task(), self._loop.time()
        try:
            if (begin := self._begin) is not None:
                self._begin = None
                await begin()
            await self._write(message)
        except asyncio.CancelledError:
            assert self._writer is not None
            if self._has_stalled and not self._writer.uncancel():
                raise ClientStalled(f"nothing was read for {self._timeout_s:g} s") from None
            raise
        finally:
            self._writing_since = None

    def close(self) -> None:
        self._timer.cancel()

    def _look(self) -> None:
        now = self._loop.time()
        since = now if self._writing_since is None else self._writing_since
        if now - since >= self._timeout_s and self._writer is not None:
            self._has_stalled = True
            self._writer.cancel()
        else:
            self._timer = self._loop.call_at(since + self._timeout_s, self._look)

"""Ends streams whose clients do not read.

A handler waits in `write` for as long as HTTP/2's flow control demands, which is for ever if its
client has stopped reading; everything that the handler holds would stay in memory.
"""

import asyncio
from collections.abc import Awaitable, Iterator
from contextlib import contextmanager
from typing import Any

from contract.errors import ResourceExhausted
from rpc.interceptors.call_handlers import Context, Handler, WrappingInterceptor, Write, wrap


class ClientStalled(Exception):
    """The client has read nothing for too long; the message gives the seconds."""


class StallGuard:
    """Bounds the writes of one stream, with one timer for all of them.

    A timeout for each write would cost as much as the write.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._loop = asyncio.get_running_loop()
        self._writing_since: float | None = None
        self._writer: asyncio.Task[Any] | None = None
        self._has_stalled = False
        self._timer = self._loop.call_later(timeout_s, self._look)

    async def write(self, writing: Awaitable[Any]) -> None:
        """Awaits one write. Raises ClientStalled."""
        self._writer, self._writing_since = asyncio.current_task(), self._loop.time()
        try:
            await writing
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


class SlowClientInterceptor(WrappingInterceptor):
    """Bounds each write of a stream; must be the innermost interceptor.

    Args:
        timeout_s: seconds that a client may read nothing while a write waits.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    def wrapped(self, handler: Handler, method: str) -> Handler:
        return wrap(handler, writing=self._writing) if handler.response_streaming else handler

    @contextmanager
    def _writing(self, context: Context) -> Iterator[Write]:
        guard = StallGuard(self._timeout_s)
        try:
            yield lambda response: guard.write(context.write(response))
        except ClientStalled as error:
            raise ResourceExhausted(f"the client does not read: {error}") from None
        finally:
            guard.close()

"""Clients that do not read: a stream whose client takes nothing for too long ends.

A handler waits in `write` for as long as HTTP/2's flow control says, which is for ever if its
client has stopped reading; what it holds would be held as long.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc

from rpc.errors import ResourceExhausted
from rpc.handlers import Context, Handler, wrap


class SlowClientInterceptor(grpc.aio.ServerInterceptor):
    """Bounds each write of a stream; to be the innermost interceptor.

    Args:
        timeout_s: how long a client may take nothing of what is written for it.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        handler = await continuation(handler_call_details)
        if handler is None or not handler.response_streaming:
            return handler
        return wrap(handler, _run, write=self._write)

    async def _write(self, context: Context, response: object) -> None:
        try:
            async with asyncio.timeout(self._timeout_s):
                await context.write(response)
        except TimeoutError:
            raise ResourceExhausted(
                f"the client has read nothing for {self._timeout_s:g} s"
            ) from None


async def _run(call: Awaitable[Any], _context: Context) -> Any:
    return await call

"""Treats HTTP clients that do not read as clients that have disconnected, as over gRPC."""

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from signalbox_router.apis.openai.streaming import BODY_SENDER
from signalbox_rpc.interceptors.response_stream import ClientStalled, StallGuard

logger = logging.getLogger(__name__)

LEAVE_S = 1.0
"""Seconds for an application to notice that its client counts as disconnected."""


class StallGate:
    """Bounds each write to a client.

    Args:
        timeout_s: seconds that a client may read nothing while a write waits.
    """

    def __init__(self, app: ASGIApp, *, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stalled = asyncio.Event()
        guard = StallGuard(self._timeout_s, send)

        async def bounded_send(message: Message) -> None:
            try:
                await guard.write(message)
            except ClientStalled as error:
                logger.warning("a client does not read: %s", error)
                stalled.set()
                # A handler that watches for a disconnect ends meanwhile.
                await asyncio.sleep(LEAVE_S)
                raise

        async def receive_or_leave() -> Message:
            return await _first_of(receive, stalled)

        try:
            scope[BODY_SENDER] = bounded_send
            await self._app(scope, receive_or_leave, bounded_send)
        finally:
            guard.close()


async def _first_of(receive: Receive, stalled: asyncio.Event) -> Message:
    receiving = asyncio.ensure_future(receive())
    stalling = asyncio.ensure_future(stalled.wait())
    try:
        await asyncio.wait({receiving, stalling}, return_when=asyncio.FIRST_COMPLETED)
        return receiving.result() if receiving.done() else {"type": "http.disconnect"}
    finally:
        receiving.cancel()
        stalling.cancel()

"""HTTP clients that do not read are taken for clients that have left, as over gRPC."""

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

logger = logging.getLogger(__name__)

LEAVE_S = 1.0
"""For an application to notice that its client counts as gone."""


class StallGate:
    """Bounds each write to a client.

    Args:
        timeout_s: how long a client may take nothing of what is written for it.
    """

    def __init__(self, app: ASGIApp, *, timeout_s: float) -> None:
        self._app = app
        self._timeout_s = timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stalled = asyncio.Event()

        async def bounded_send(message: Message) -> None:
            try:
                async with asyncio.timeout(self._timeout_s):
                    await send(message)
            except TimeoutError:
                logger.warning("a client has read nothing for %g s", self._timeout_s)
                stalled.set()
                await asyncio.sleep(LEAVE_S)  # who listens for clients that leave ends in here
                raise

        async def receive_or_leave() -> Message:
            return await _first_of(receive, stalled)

        await self._app(scope, receive_or_leave, bounded_send)


async def _first_of(receive: Receive, stalled: asyncio.Event) -> Message:
    receiving = asyncio.ensure_future(receive())
    stalling = asyncio.ensure_future(stalled.wait())
    try:
        await asyncio.wait({receiving, stalling}, return_when=asyncio.FIRST_COMPLETED)
        return receiving.result() if receiving.done() else {"type": "http.disconnect"}
    finally:
        receiving.cancel()
        stalling.cancel()

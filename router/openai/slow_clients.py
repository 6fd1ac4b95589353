"""HTTP clients that do not read are taken for clients that have left, as over gRPC."""

import asyncio
import logging

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from rpc.slow_clients import ClientStalled, StallGuard

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
        guard = StallGuard(self._timeout_s)

        async def bounded_send(message: Message) -> None:
            try:
                await guard.write(send(message))
            except ClientStalled as error:
                logger.warning("a client does not read: %s", error)
                stalled.set()
                await asyncio.sleep(LEAVE_S)  # who listens for clients that leave ends in here
                raise

        async def receive_or_leave() -> Message:
            return await _first_of(receive, stalled)

        try:
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

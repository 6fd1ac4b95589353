"""Runs the HTTP server: start, serve, drain."""

import asyncio
import contextlib
from collections.abc import Mapping
from typing import Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

from signalbox_contract.errors import Unavailable
from signalbox_router.apis.openai.error_shape import ErrorWriter
from signalbox_router.apis.openai.streaming import ErrorResponse
from signalbox_router.http.paths import Paths
from signalbox_rpc.http.host_check import NO_ACCESS, HttpAccess
from signalbox_rpc.http.port_limits import NORMAL, HttpLimits
from signalbox_rpc.http.server import HttpPort
from signalbox_rpc.transport.listening_ports import Endpoint

KEEP_ALIVE_S = 75
RETRY_AFTER_S = 1.0
FLUSH_S = 1
"""Seconds for clients to read the ends of their answers."""


class BackgroundWork(Protocol):
    """Work of an application that outlives its requests."""

    async def start(self) -> None:
        """Begins before the port opens. Raises ValueError if that is impossible."""

    async def drain(self, *, grace_s: float) -> None:
        """Returns when the work has ended, or grace_s are over."""

    async def stop(self) -> None:
        """Ends the work."""


class NoWork:
    """No work."""

    async def start(self) -> None:
        """Does nothing."""

    async def drain(self, *, grace_s: float) -> None:
        """Does nothing."""

    async def stop(self) -> None:
        """Does nothing."""


NO_WORK = NoWork()


class HttpServer(HttpPort):
    """Serves an application; refuses new requests while it drains."""

    def __init__(
        self,
        app: ASGIApp,
        endpoint: Endpoint,
        *,
        shapes: Mapping[str, ErrorWriter],
        access: HttpAccess = NO_ACCESS,
        limits: HttpLimits = NORMAL,
        work: BackgroundWork = NO_WORK,
    ) -> None:
        """Makes a server; `shapes` are those of `paths.error_shapes`."""
        self._gate = _Gate(app)
        self._work = work
        super().__init__(
            Paths(self._gate, shapes),
            endpoint,
            access=access,
            limits=limits,
            timeout_keep_alive=KEEP_ALIVE_S,
        )

    async def start(self) -> int:
        await self._work.start()
        return await super().start()

    def stop_serving(self) -> None:
        """Answers new requests with 503 from now on; running ones continue."""
        self._gate.is_open = False

    async def drain(self, *, grace_s: float) -> None:
        """Returns when the running requests have ended, cut off after grace_s."""
        self.stop_serving()
        idle = self._gate.wait_idle(timeout_s=grace_s)
        is_idle, _ = await asyncio.gather(idle, self._work.drain(grace_s=grace_s))
        await self._work.stop()
        await self.stop(flush_s=FLUSH_S if is_idle else 0)


class _Gate:
    """Counts requests, and refuses new ones once it is closed."""

    def __init__(self, app: ASGIApp) -> None:
        self.is_open = True
        self._app = app
        self._num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    async def wait_idle(self, *, timeout_s: float) -> bool:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._idle.wait()
        return self._idle.is_set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.is_open:
            error = Unavailable("this server is shutting down", RETRY_AFTER_S)
            await ErrorResponse(error)(scope, receive, send)
            return
        self._num_running += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

"""The life of the HTTP server: bind, serve, drain. uvicorn, on the router's own event loop."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from router.openai.responses import error_response
from router.openai.slow_heads import HeadTimeout
from rpc.errors import Unavailable
from rpc.server import HTTP_REMEDY, check_exposure, check_free, join_address
from rpc.tls import CLEAR, TlsConfig, http_context

logger = logging.getLogger(__name__)

BACKLOG = 1024
KEEP_ALIVE_S = 75
RETRY_AFTER_S = 1.0
FLUSH_S = 1
"""For clients to read the ends of their answers."""


class HttpServer:
    """Serves an application; refuses new requests while it drains."""

    def __init__(self, app: ASGIApp, *, host: str, port: int, tls: TlsConfig = CLEAR) -> None:
        self.host = host
        self.port = port
        self._tls = tls
        self._gate = _Gate(app)
        self._config = uvicorn.Config(
            self._gate,
            http=HeadTimeout,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
        )
        self._server = _Server(self._config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where the server listens, "host:port"."""
        return join_address(self.host, self.port)

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        check_exposure(self.address, self._tls)
        check_free(self.host, self.port, remedy=HTTP_REMEDY)
        family, _, _, _, where = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(where[:2], family=family, backlog=BACKLOG)
        self.port = listener.getsockname()[1]
        self._config.load()
        if self._tls.serves:
            self._config.ssl = http_context(self._tls)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http server")
        return self.port

    def stop_serving(self) -> None:
        """Answers new requests with 503 from now on; those that run go on."""
        self._gate.is_open = False

    async def drain(self, *, grace_s: float) -> None:
        """Returns when the requests that run have ended, cut off after grace_s."""
        self.stop_serving()
        if self._serving is None:
            return
        is_idle = await self._gate.wait_idle(timeout_s=grace_s)
        self._config.timeout_graceful_shutdown = FLUSH_S if is_idle else 0
        self._server.should_exit = True
        await self._serving


class _Server(uvicorn.Server):
    """The router handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


class _Gate:
    """Counts requests, and lets none in once it is closed."""

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
            await error_response(error)(scope, receive, send)
            return
        self._num_running += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._idle.set()

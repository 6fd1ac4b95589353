"""A port that speaks HTTP, on the service's own event loop: uvicorn, quiet and without signals."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from typing import Any

import uvicorn

from rpc.listening import check_exposure, check_free, join_address
from rpc.tls import CLEAR, TlsConfig, http_context

BACKLOG = 1024


class HttpPort:
    """Serves an application until it is stopped."""

    def __init__(
        self,
        app: Any,
        *,
        host: str,
        port: int,
        tls: TlsConfig = CLEAR,
        remedy: str,
        names_callers: bool = False,
        **options: Any,
    ) -> None:
        """Binds nothing yet.

        Args:
            remedy: what to do if the port is in use.
            names_callers: whether it is for certain roles alone, as the service's gRPC port is.
            options: uvicorn's, beside those that are the same for all ports.
        """
        self.host = host
        self.port = port
        self._tls = tls
        self._remedy = remedy
        self._names_callers = names_callers
        self._config = uvicorn.Config(
            app,
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            **options,
        )
        self._server = _Server(self._config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where it listens, "host:port"."""
        return join_address(self.host, self.port)

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        check_exposure(self.address, self._tls, names_callers=self._names_callers)
        check_free(self.host, self.port, remedy=self._remedy)
        family, _, _, _, where = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(where[:2], family=family, backlog=BACKLOG)
        self.port = listener.getsockname()[1]
        self._config.load()
        if self._tls.serves:
            self._config.ssl = http_context(self._tls)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="http port")
        return self.port

    async def stop(self, *, flush_s: int) -> None:
        """Closes the port; connections have `flush_s` for what is written to be read."""
        if self._serving is None:
            return
        self._config.timeout_graceful_shutdown = flush_s
        self._server.should_exit = True
        await self._serving


class _Server(uvicorn.Server):
    """The service handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

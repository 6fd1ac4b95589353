"""A port where Prometheus reads metrics, on the service's event loop, under the service's TLS.

Of the service's own loop, so that a scrape sees numbers of one moment and needs no lock.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import AsyncIterator, Iterator
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry, make_asgi_app

from rpc.metrics import MetricsConfig, Read, make_registry
from rpc.otel_metrics import exported
from rpc.server import check_exposure, check_free, join_address
from rpc.tls import CLEAR, TlsConfig, http_context

logger = logging.getLogger(__name__)

PATH = "/metrics"
FLUSH_S = 1
"""For a scrape to be read, and for connections that are kept open to be closed."""
REMEDY = "choose another --metrics-port"


class MetricsServer:
    """Serves a registry at /metrics and nothing else."""

    def __init__(
        self,
        registry: CollectorRegistry,
        *,
        host: str,
        port: int,
        tls: TlsConfig = CLEAR,
        names_callers: bool = True,
    ) -> None:
        """`names_callers` is that of the service's gRPC port: whether it is for certain roles."""
        self.host = host
        self.port = port
        self._tls = tls
        self._names_callers = names_callers
        self._config = uvicorn.Config(
            _only_metrics(make_asgi_app(registry)),
            log_config=None,
            log_level="warning",
            access_log=False,
            lifespan="off",
            ws="none",
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=FLUSH_S,
        )
        self._server = _Server(self._config)
        self._serving: asyncio.Task[None] | None = None

    @property
    def address(self) -> str:
        """Where the server listens, "host:port"."""
        return join_address(self.host, self.port)

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        check_exposure(self.address, self._tls, names_callers=self._names_callers)
        check_free(self.host, self.port, remedy=REMEDY)
        family, _, _, _, where = socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.create_server(where[:2], family=family)
        self.port = listener.getsockname()[1]
        self._config.load()
        if self._tls.serves:
            self._config.ssl = http_context(self._tls)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="metrics server")
        scheme = "https" if self._tls.serves else "http"
        logger.info("metrics at %s://%s%s", scheme, self.address, PATH)
        return self.port

    async def stop(self) -> None:
        """Closes the port, to be called when all else has ended."""
        if self._serving is not None:
            self._server.should_exit = True
            await self._serving


def metrics_server(
    config: MetricsConfig,
    registry: CollectorRegistry,
    *,
    host: str,
    tls: TlsConfig,
    names_callers: bool = True,
) -> MetricsServer | None:
    """Returns the server that a process is to start and to stop, if it is to have one."""
    if config.port is None:
        return None
    return MetricsServer(
        registry, host=host, port=config.port, tls=tls, names_callers=names_callers
    )


@contextlib.asynccontextmanager
async def serving_metrics(
    config: MetricsConfig, read: Read, *, host: str, tls: TlsConfig
) -> AsyncIterator[MetricsServer | None]:
    """Shows and exports what `read` adds for as long as the context lasts, if asked for."""
    registry = make_registry(read, prefix=config.prefix)
    server = metrics_server(config, registry, host=host, tls=tls)
    if server is not None:
        await server.start()
    try:
        with exported(registry):
            yield server
    finally:
        if server is not None:
            await server.stop()


class _Server(uvicorn.Server):
    """The service handles signals."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


def _only_metrics(app: Any) -> Any:
    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == PATH and scope["method"] in ("GET", "HEAD"):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"metrics are at /metrics\n"})

    return guarded

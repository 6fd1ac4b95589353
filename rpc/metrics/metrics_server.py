"""Serves metrics to Prometheus on a port of its own, under the service's TLS.

It runs on the service's event loop, so a scrape sees numbers of one moment and needs no lock.
"""

import contextlib
import logging
from collections.abc import AsyncIterator

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from rpc.http import port_limits
from rpc.http.host_check import HttpAccess
from rpc.http.server import HttpPort
from rpc.metrics.exposition import encoder_for
from rpc.metrics.metrics_socket import serving_socket
from rpc.metrics.registry import MetricsConfig, Read, make_registry
from rpc.transport.tls import CLEAR, TlsConfig

logger = logging.getLogger(__name__)

PATH = "/metrics"
FLUSH_S = 1
"""Seconds for a scrape to be read and for idle connections to be closed."""
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
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        """`names_callers` is True if only certain roles may call the service's gRPC port."""
        self._scheme = "https" if tls.serves else "http"
        self._listener = HttpPort(
            _only_metrics(_shown(registry)),
            host=host,
            port=port,
            tls=tls,
            remedy=REMEDY,
            names_callers=names_callers,
            access=HttpAccess(hosts=allowed_hosts),
            limits=port_limits.OF_METRICS,
        )

    @property
    def port(self) -> int:
        return self._listener.port

    @property
    def address(self) -> str:
        """The server's listening address, "host:port"."""
        return self._listener.address

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        port = await self._listener.start()
        logger.info("metrics at %s://%s%s", self._scheme, self.address, PATH)
        return port

    async def stop(self) -> None:
        """Closes the port, to be called when all else has ended."""
        await self._listener.stop(flush_s=FLUSH_S)


def metrics_server(
    config: MetricsConfig,
    registry: CollectorRegistry,
    *,
    host: str,
    tls: TlsConfig,
    names_callers: bool = True,
) -> MetricsServer | None:
    """Returns the server that a process must start and stop; None if no port is configured."""
    if config.port is None:
        return None
    return MetricsServer(
        registry,
        host=host,
        port=config.port,
        tls=tls,
        names_callers=names_callers,
        allowed_hosts=config.allowed_hosts,
    )


@contextlib.asynccontextmanager
async def serving_metrics(
    config: MetricsConfig, read: Read, *, host: str, tls: TlsConfig
) -> AsyncIterator[MetricsServer | None]:
    """Serves the metrics that `read` adds while the context lasts, if configured."""
    registry = make_registry(read, prefix=config.prefix)
    server = metrics_server(config, registry, host=host, tls=tls)
    if server is not None:
        await server.start()
    try:
        async with serving_socket(registry, config.socket):
            yield server
    finally:
        if server is not None:
            await server.stop()


def _shown(registry: CollectorRegistry) -> ASGIApp:
    async def show(scope: Scope, receive: Receive, send: Send) -> None:
        encode, content_type = encoder_for(Request(scope).headers.get("accept", ""))
        response = Response(encode(registry), headers={"content-type": content_type})
        await response(scope, receive, send)

    return show


def _only_metrics(app: ASGIApp) -> ASGIApp:
    async def guarded(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == PATH and scope["method"] in ("GET", "HEAD"):
            await app(scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 404, "headers": headers})
        await send({"type": "http.response.body", "body": b"metrics are at /metrics\n"})

    return guarded

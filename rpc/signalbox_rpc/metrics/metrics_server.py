"""Serves metrics to Prometheus on a port of its own, under the service's TLS.

It runs on the service's event loop, so a scrape sees numbers of one moment and needs no lock.
"""

import logging

from prometheus_client import CollectorRegistry
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from signalbox_rpc.http import port_limits
from signalbox_rpc.http.host_check import HttpAccess
from signalbox_rpc.http.server import HttpPort
from signalbox_rpc.metrics.exposition import encoder_for
from signalbox_rpc.transport.listening_ports import Endpoint

logger = logging.getLogger(__name__)

PATH = "/metrics"
FLUSH_S = 1
"""Seconds for a scrape to be read and for idle connections to be closed."""


class MetricsServer(HttpPort):
    """Serves a registry at /metrics and nothing else."""

    def __init__(
        self,
        registry: CollectorRegistry,
        endpoint: Endpoint,
        *,
        names_callers: bool = True,
        allowed_hosts: tuple[str, ...] = (),
    ) -> None:
        """`names_callers` is True if only certain roles may call the service's gRPC port."""
        self._scheme = "https" if endpoint.tls.serves else "http"
        super().__init__(
            _only_metrics(_shown(registry)),
            endpoint,
            names_callers=names_callers,
            access=HttpAccess(hosts=allowed_hosts),
            limits=port_limits.OF_METRICS,
        )

    async def start(self) -> int:
        """Listens and returns the port. Raises PortInUse, BindError or TlsError."""
        port = await super().start()
        logger.info("metrics at %s://%s%s", self._scheme, self.address, PATH)
        return port

    async def stop(self, *, flush_s: int = FLUSH_S) -> None:
        """Closes the port, to be called when all else has ended."""
        await super().stop(flush_s=flush_s)


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

"""Serves a service's metrics on a port, a Unix socket, both or neither, as it is configured.

The HTTP server is imported for a port alone: in a local stack the router shows what the sockets of
the other services give.
"""

import contextlib
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry

from signalbox_rpc.metrics.metrics_socket import serving_socket
from signalbox_rpc.metrics.registry import MetricsConfig, Read, make_registry
from signalbox_rpc.transport.listening_ports import METRICS_REMEDY, Endpoint
from signalbox_rpc.transport.tls import TlsConfig

if TYPE_CHECKING:
    from signalbox_rpc.metrics.metrics_server import MetricsServer


def metrics_server(
    config: MetricsConfig,
    registry: CollectorRegistry,
    *,
    host: str,
    tls: TlsConfig,
    names_callers: bool = True,
) -> "MetricsServer | None":
    """Returns the server that a process must start and stop; None if no port is configured."""
    if config.port is None:
        return None
    from signalbox_rpc.metrics.metrics_server import MetricsServer

    return MetricsServer(
        registry,
        Endpoint(host=host, port=config.port, tls=tls, remedy=METRICS_REMEDY),
        names_callers=names_callers,
        allowed_hosts=config.allowed_hosts,
    )


@contextlib.asynccontextmanager
async def serving_metrics(
    config: MetricsConfig, read: Read, *, host: str, tls: TlsConfig
) -> "AsyncIterator[MetricsServer | None]":
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

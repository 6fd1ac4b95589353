"""Builds a router's HTTP server: the API and the limits of its clients."""

from collections.abc import Awaitable, Callable

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from router.config import RouterConfig
from router.generator import Generator
from router.http.app import make_app
from router.http.cors import shared_with
from router.http.key_middleware import KeyGate
from router.http.server import HttpServer
from router.http.write_timeout import StallGate
from router.keys.api_keys import KeyRing
from router.keys.tenants import Tenants
from router.openai.bodies.body_reader import BodyReader
from router.openai.routes import Api
from rpc.http.host_check import HttpAccess
from rpc.metrics.merged_metrics import merged
from rpc.metrics.registry import PREFIXES


def make_http_server(
    config: RouterConfig,
    generator: Generator,
    tenants: Tenants,
    keys: KeyRing | None,
    registry: CollectorRegistry,
) -> HttpServer:
    """Returns the HTTP server of a router whose `http_port` is set."""
    assert config.http_port is not None
    api = Api(
        generator,
        tenants=tenants,
        version=config.version,
        bodies=BodyReader(
            max_bytes=config.max_http_body_bytes, refuses_unknown=config.refuses_unknown_fields
        ),
    )
    # Keys separate several clients, and no client may see the traffic of the others.
    shown = _metrics_page(config, registry) if keys is None else None
    app = make_app(api, version=config.version, metrics=shown)
    guarded = app if keys is None else KeyGate(app, keys)
    shared = shared_with(guarded, config.allowed_origins)
    bounded = StallGate(shared, timeout_s=config.client_stall_timeout_s)
    return HttpServer(
        bounded,
        host=config.host,
        port=config.http_port,
        tls=config.tls,
        access=HttpAccess(hosts=config.allowed_hosts, origins=config.allowed_origins),
        limits=config.http_limits,
    )


def _metrics_page(
    config: RouterConfig, registry: CollectorRegistry
) -> Callable[[], Awaitable[Collector]]:
    """Returns the function that collects the metrics of the HTTP API's page."""

    async def collect() -> Collector:
        if not config.metrics_sources:
            return registry
        prefix = PREFIXES[config.metrics.prefix]
        return await merged(registry, name="router", sources=config.metrics_sources, prefix=prefix)

    return collect

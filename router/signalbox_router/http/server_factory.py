"""Builds a router's HTTP server: the API and the limits of its clients."""

from collections.abc import Awaitable, Callable, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from signalbox_router.apis.connect.web_servicer import RpcErrors, RpcMethod, WebServicer
from signalbox_router.apis.messages.routes import MessagesApi
from signalbox_router.apis.openai.adapter_routes import AdapterApi
from signalbox_router.apis.openai.bodies.body_reader import BodyReader
from signalbox_router.apis.openai.pooling_routes import PoolingApi
from signalbox_router.apis.openai.routes import Api
from signalbox_router.apis.responses.routes import ResponsesApi
from signalbox_router.apis.stored_responses.opened_store import make_store
from signalbox_router.apis.stored_responses.routes import StoredResponsesApi
from signalbox_router.config import RouterConfig
from signalbox_router.console.console_files import PATHS, ConsoleFiles
from signalbox_router.generation.generator import Generator
from signalbox_router.http.app import make_app
from signalbox_router.http.cors import shared_with
from signalbox_router.http.key_middleware import KeyGate
from signalbox_router.http.paths import error_shapes
from signalbox_router.http.server import NO_WORK, BackgroundWork, HttpServer
from signalbox_router.http.write_timeout import StallGate
from signalbox_router.limits.api_keys import KeyRing
from signalbox_router.limits.tenants import Tenants
from signalbox_router.schedulers.adapter_client import SchedulerAdapters
from signalbox_rpc.http.host_check import HttpAccess
from signalbox_rpc.http.port_limits import HttpLimits
from signalbox_rpc.metrics.merged_metrics import merged
from signalbox_rpc.metrics.registry import PREFIXES, add_samples
from signalbox_rpc.settings.quantities import texts
from signalbox_rpc.transport.listening_ports import HTTP_REMEDY, Endpoint


def make_http_server(
    config: RouterConfig,
    generator: Generator,
    tenants: Tenants,
    keys: KeyRing | None,
    registry: CollectorRegistry,
    adapters: SchedulerAdapters,
    methods: Mapping[str, RpcMethod],
    on_malformed: Callable[[str], None],
) -> HttpServer:
    bodies = BodyReader(
        max_bytes=config.max_http_body_bytes, refuses_unknown=config.unknown_fields == "refuse"
    )
    api = Api(generator, tenants=tenants, version=config.version, bodies=bodies)
    pooling_api = PoolingApi(generator, tenants=tenants, bodies=bodies)
    adapter_api = AdapterApi(
        adapters if config.allow_adapter_loading else None, tenants=tenants, bodies=bodies
    )
    # Keys separate several clients, and no client may see the traffic of the others.
    metrics = _metrics_page(config, registry) if keys is None else None
    responses_api, work = _responses_api(config, generator, tenants, bodies, registry)
    messages_api = MessagesApi(generator, tenants=tenants, bodies=bodies)
    apis = (api, responses_api, messages_api, pooling_api, adapter_api)
    web = WebServicer(
        methods,
        max_bytes=config.max_http_body_bytes,
        ignores_unknown=config.unknown_fields != "refuse",
        on_malformed=on_malformed,
    )
    services = {path.rpartition("/")[0]: web for path in methods}
    app = make_app(apis, version=config.version, services=services, metrics=metrics)
    guarded = app if keys is None else KeyGate(app, keys)
    origins = texts(config.allowed_origins or "")
    shared = shared_with(guarded, origins)
    pages = PATHS if config.serves_console else frozenset[str]()
    shown = ConsoleFiles(shared) if pages else shared
    bounded = StallGate(shown, timeout_s=config.client_stall_timeout)
    return HttpServer(
        bounded,
        Endpoint(host=config.host, port=config.http_port, tls=config.tls, remedy=HTTP_REMEDY),
        shapes={**error_shapes(apis), **dict.fromkeys(services, RpcErrors())},
        access=HttpAccess(hosts=texts(config.allowed_hosts or ""), origins=origins, pages=pages),
        limits=HttpLimits(
            max_connections=config.max_http_connections,
            max_connections_per_address=config.max_http_connections_per_address,
            min_body_rate=config.min_http_body_rate,
        ),
        work=work,
    )


def _responses_api(
    config: RouterConfig,
    generator: Generator,
    tenants: Tenants,
    bodies: BodyReader,
    registry: CollectorRegistry,
) -> tuple[ResponsesApi, BackgroundWork]:
    """Returns the Responses API, and the responses that it runs without a client."""
    store = make_store(config)
    if store is None:
        return ResponsesApi(generator, tenants=tenants, bodies=bodies), NO_WORK
    add_samples(registry, store.samples, prefix=config.metrics.prefix)
    api = StoredResponsesApi(generator, tenants=tenants, bodies=bodies, store=store)
    return api, api.runs


def _metrics_page(
    config: RouterConfig, registry: CollectorRegistry
) -> Callable[[], Awaitable[Collector]]:
    """Returns the function that collects the metrics of the HTTP API's page."""
    named = (one.partition("=") for one in texts(config.metrics_sources or ""))
    sources = {name: socket for name, _, socket in named}
    prefix = PREFIXES[config.metrics_prefix]

    async def collect() -> Collector:
        if not sources:
            return registry
        return await merged(registry, name="router", sources=sources, prefix=prefix)

    return collect

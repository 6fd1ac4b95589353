"""One router process: waits for the scheduler and a worker, serves, drains."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

import grpc
from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector
from smg_grpc_proto import vllm_engine_pb2_grpc

from protos.inference.v1 import inference_pb2_grpc
from router.admission import Admission
from router.config import RouterConfig
from router.generation import Generator
from router.key_gate import KeyInterceptor
from router.keys import KeyRing
from router.load_client import LoadClient
from router.metrics import RouterMetrics
from router.observer import Observer
from router.request_log import RequestLog
from router.schedulers import Schedulers
from router.servicer import OPERATIONS, SERVICE_NAME, InferenceServicer
from router.tenants import Tenants
from router.vllm.servicer import OPERATIONS as VLLM_OPERATIONS
from router.vllm.servicer import SERVICE_NAME as VLLM_SERVICE
from router.vllm.servicer import VllmEngineServicer
from rpc.lifetime import run_until_signalled
from rpc.listening import GRPC_REMEDY
from rpc.merged_metrics import merged
from rpc.metrics import PREFIXES, make_registry
from rpc.metrics_server import metrics_server
from rpc.otel_metrics import exported
from rpc.server import Server
from rpc.slow_clients import SlowClientInterceptor

if TYPE_CHECKING:
    from router.openai.server import HttpServer

logger = logging.getLogger(__name__)


class Router:
    """The parts of a router, wired; also what tests start."""

    def __init__(
        self, config: RouterConfig, *, on_serving: Callable[[str], None] = lambda _name: None
    ) -> None:
        """`on_serving` is told the model's name whenever requests begin to be taken."""
        self._on_serving = on_serving
        self._tls = config.tls
        metrics = RouterMetrics()
        keys = _key_ring(config, metrics)
        self.server = Server(
            host=config.host,
            port=config.port,
            reflection=config.reflection,
            interceptors=[
                *([KeyInterceptor(keys)] if keys else []),
                SlowClientInterceptor(config.client_stall_timeout_s),
            ],
            tls=config.tls,
            on_malformed=self._count_malformed,
            remedy=GRPC_REMEDY,
        )
        self.schedulers = Schedulers(
            config.scheduler_addresses,
            tokenizer_threads=config.tokenizer_threads,
            chat_template=config.chat_template,
            model_poll_s=config.model_poll_s,
            resume_wait_s=config.resume_wait_s,
            on_serving=self._set_serving,
            tls=config.tls,
            model_names=config.model_names,
        )
        self.admission = Admission(config, self.schedulers)
        self.registry = make_registry(metrics.read, prefix=config.metrics.prefix)
        self.generator = Generator(
            self.admission,
            self.schedulers,
            tool_call_parser=config.tool_call_parser,
            reasoning_parser=config.reasoning_parser,
            observer=Observer(metrics, RequestLog(config.logged_requests)),
        )
        self._load = LoadClient(config.scheduler_addresses, tls=config.tls)
        tenants = Tenants(trust_header=config.trust_tenant_header, keys=keys)
        self.http = _http_server(config, self.generator, tenants, keys, self.registry)
        self.metrics_server = metrics_server(
            config.metrics, self.registry, host=config.host, tls=config.tls, names_callers=False
        )
        self.server.add(
            InferenceServicer(self.generator, tenants=tenants, load=self._load),
            inference_pb2_grpc.add_InferenceServiceServicer_to_server,
            name=SERVICE_NAME,
        )
        self.server.add(
            VllmEngineServicer(
                self.generator,
                tenants=tenants,
                load=self._load,
                version=config.version,
                is_serving=lambda: self.server.is_serving(VLLM_SERVICE),
            ),
            vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server,
            name=VLLM_SERVICE,
        )
        self._connecting: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listens, begins to look for schedulers, returns the port. Raises PortInUse."""
        port = await self.server.start()
        if self.http is not None:
            await self.http.start()
            scheme = "https" if self._tls.serves else "http"
            logger.info("HTTP at %s://%s/v1", scheme, self.http.address)
        if self.metrics_server is not None:
            await self.metrics_server.start()
        self._connecting = asyncio.create_task(self.schedulers.run(), name="schedulers")
        logger.info("router listens on %s", self.server.address)
        return port

    async def drain(self, *, grace_s: float) -> None:
        """Takes no new requests and returns when those that run have ended, within grace_s."""
        self.stop_serving()
        drains = [self.server.drain(grace_s=grace_s)]
        if self.http is not None:
            drains.append(self.http.drain(grace_s=grace_s))
        await asyncio.gather(*drains)

    def stop_serving(self) -> None:
        """Turns NOT_SERVING over gRPC and 503 over HTTP."""
        self.server.stop_serving()
        if self.http is not None:
            self.http.stop_serving()

    async def stop(self) -> None:
        """Lets go of ports and schedulers, whether it has started, drained or neither.

        Of gRPC nothing may be left when the event loop closes: what is has no loop to end on, and
        says so on standard error while the interpreter goes.
        """
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)
        if self.metrics_server is not None:
            await self.metrics_server.stop()
        await self.drain(grace_s=0.0)
        await self._load.close()

    def _count_malformed(self, method: str) -> None:
        if operation := (OPERATIONS | VLLM_OPERATIONS).get(method):
            self.generator.unread(
                operation,
                grpc.StatusCode.INVALID_ARGUMENT,
                "the bytes are no message of this method's type",
            )

    def _set_serving(self, serving: bool) -> None:
        self.server.set_serving(SERVICE_NAME, VLLM_SERVICE, serving=serving)
        if serving:
            self._on_serving(self.schedulers.model.name)


async def run(
    config: RouterConfig, *, on_serving: Callable[[str], None] = lambda _name: None
) -> None:
    """Serves until SIGTERM or SIGINT. Health is NOT_SERVING until the model is known."""
    router = Router(config, on_serving=on_serving)
    try:
        await router.start()
        with exported(router.registry):
            await run_until_signalled(router, grace_s=config.grace_s)
    finally:
        await router.stop()


def _key_ring(config: RouterConfig, metrics: RouterMetrics) -> KeyRing | None:
    if config.api_keys is None and not config.api_key_digests:
        return None
    return KeyRing(
        config.api_keys,
        digests=config.api_key_digests,
        on_refused=lambda: metrics.rejected("UNAUTHENTICATED"),
    )


def _metrics_page(
    config: RouterConfig, registry: CollectorRegistry
) -> Callable[[], Awaitable[Collector]]:
    """Returns what collects the metrics that the HTTP API shows."""

    async def collect() -> Collector:
        if not config.metrics_sources:
            return registry
        prefix = PREFIXES[config.metrics.prefix]
        return await merged(registry, name="router", sources=config.metrics_sources, prefix=prefix)

    return collect


def _http_server(
    config: RouterConfig,
    generator: Generator,
    tenants: Tenants,
    keys: KeyRing | None,
    registry: CollectorRegistry,
) -> "HttpServer | None":
    if config.http_port is None:
        return None
    # These import fastapi, which takes as long as all else that a router imports.
    from router.openai.api import Api
    from router.openai.app import make_app
    from router.openai.bodies import BodyReader
    from router.openai.cors import shared_with
    from router.openai.key_gate import KeyGate
    from router.openai.server import HttpServer
    from router.openai.slow_clients import StallGate

    api = Api(
        generator,
        tenants=tenants,
        version=config.version,
        bodies=BodyReader(
            max_bytes=config.max_http_body_bytes, refuses_unknown=config.refuses_unknown_fields
        ),
    )
    # With keys there are several clients, none of whom is to see what the others do.
    shown = _metrics_page(config, registry) if keys is None else None
    app = make_app(api, version=config.version, metrics=shown)
    guarded = app if keys is None else KeyGate(app, keys)
    shared = shared_with(guarded, config.allowed_origins)
    bounded = StallGate(shared, timeout_s=config.client_stall_timeout_s)
    return HttpServer(bounded, host=config.host, port=config.http_port, tls=config.tls)

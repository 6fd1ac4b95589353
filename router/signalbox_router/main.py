"""One router process: waits for a scheduler and a worker, serves, drains."""

import asyncio
import logging
from collections.abc import Callable
from hashlib import sha256
from typing import TYPE_CHECKING

from smg_grpc_proto import vllm_engine_pb2_grpc

from signalbox_contract.errors import Code
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_protos.operations.v1 import operations_pb2_grpc
from signalbox_router.apis.inference.servicer import OPERATIONS, SERVICE_NAME, InferenceServicer
from signalbox_router.apis.operations.models_servicer import OperatedModels
from signalbox_router.apis.operations.servicer import SERVICE_NAME as OPERATIONS_SERVICE
from signalbox_router.apis.operations.servicer import OperationsServicer
from signalbox_router.apis.vllm.servicer import OPERATIONS as VLLM_OPERATIONS
from signalbox_router.apis.vllm.servicer import SERVICE_NAME as VLLM_SERVICE
from signalbox_router.apis.vllm.servicer import VllmEngineServicer
from signalbox_router.config import RouterConfig
from signalbox_router.generation.generator import Generator
from signalbox_router.generation.request_admission import Admission
from signalbox_router.insight.metrics import RouterMetrics
from signalbox_router.insight.request_log import RequestLog
from signalbox_router.insight.request_observer import Observer
from signalbox_router.limits.api_keys import KeyRing
from signalbox_router.limits.key_interceptor import KeyInterceptor
from signalbox_router.limits.operator_access import OperatorAccess
from signalbox_router.limits.tenants import Tenants
from signalbox_router.prompt.chat.known_templates import load_chat_template
from signalbox_router.receipts.receipt_key import ReceiptKey
from signalbox_router.receipts.receipts import Receipts
from signalbox_router.requests.live_requests import RequestSlots
from signalbox_router.schedulers.adapter_client import SchedulerAdapters
from signalbox_router.schedulers.first_use import FirstUse
from signalbox_router.schedulers.launcher.launcher_client import LauncherClient
from signalbox_router.schedulers.launcher.model_starts import ModelStarts
from signalbox_router.schedulers.load_client import LoadClient
from signalbox_router.schedulers.model_client import ModelClient
from signalbox_router.schedulers.operations_client import SchedulerOperations
from signalbox_router.schedulers.scheduler_pool import Schedulers
from signalbox_rpc.interceptors.write_timeout import SlowClientInterceptor
from signalbox_rpc.limits.call_bounds import CallBounds
from signalbox_rpc.limits.large_messages import LargeMessages
from signalbox_rpc.metrics.registry import add_samples, make_registry
from signalbox_rpc.metrics.serving_metrics import metrics_server
from signalbox_rpc.transport.listening_ports import GRPC_REMEDY, Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.shutdown import run_until_signalled

if TYPE_CHECKING:
    from signalbox_router.http.server import HttpServer

logger = logging.getLogger(__name__)


class Router:
    """Creates and connects the parts of a router; tests start it too."""

    def __init__(
        self, config: RouterConfig, *, on_serving: Callable[[str], None] = lambda _name: None
    ) -> None:
        """Makes a router; `on_serving` is called with a model's name whenever serving begins."""
        self._on_serving = on_serving
        self._tls = config.tls
        metrics = RouterMetrics()
        keys = _key_ring(config, metrics)
        self._messages = LargeMessages(self._count_malformed)
        self.server = _grpc_server(config, keys, self._messages, self._count_malformed)
        self._launcher = LauncherClient(config.model_launcher) if config.model_launcher else None
        self.starts = ModelStarts(
            launcher=self._launcher,
            timeout_s=config.model_start_timeout,
            max_waiting=config.max_waiting_for_models,
        )
        self.schedulers = Schedulers(
            config.scheduler_addresses,
            model_client=ModelClient(
                tokenizer_threads=config.tokenizer_threads,
                chat_template=load_chat_template(config.chat_template),
            ),
            model_poll_s=config.model_poll_s,
            resume_wait_s=config.resume_wait,
            on_serving=self._set_serving,
            tls=config.tls,
            model_names=config.served_model_name,
            starts=self.starts,
            on_models=self.server.set_parts,
        )
        self.admission = Admission(config, self.schedulers)
        self.live = RequestSlots(config.max_live_requests)
        self._adapters = SchedulerAdapters(self.schedulers, tls=config.tls)
        self._first_use = FirstUse(self._adapters) if config.allow_adapter_loading else None
        self.registry = make_registry(metrics.samples, prefix=config.metrics.prefix)
        add_samples(self.registry, self.starts.samples, prefix=config.metrics.prefix)
        self.generator = Generator(
            self.admission,
            self.schedulers.models,
            self.live,
            first_use=self._first_use,
            starts=self.starts,
            observer=Observer(metrics, RequestLog(config.log_requests)),
            receipts=Receipts(
                version=config.version,
                key=ReceiptKey(config.receipt_key) if config.receipt_key else None,
            ),
        )
        self._load = LoadClient(config.scheduler_addresses, tls=config.tls)
        self._operations = SchedulerOperations(
            config.scheduler_addresses, tls=config.tls, away=self.starts.launched.away
        )
        tenants = Tenants(trust_header=config.trust_tenant_header, keys=keys)
        self._servicer = InferenceServicer(
            self.generator, tenants=tenants, load=self._load, messages=self._messages
        )
        self._operations_servicer = OperationsServicer(
            self._operations,
            access=OperatorAccess(keys, host=config.host),
            models=OperatedModels(self.schedulers, self._launcher),
        )
        self.http = self._http_server(config, tenants, keys) if config.http else None
        self.metrics_server = metrics_server(
            config.metrics, self.registry, host=config.host, tls=config.tls, names_callers=False
        )
        self._add_services(tenants, config)
        self._connecting: list[asyncio.Task[None]] = []
        self._has_served = False

    def _http_server(
        self, config: RouterConfig, tenants: Tenants, keys: KeyRing | None
    ) -> "HttpServer":
        # This imports fastapi, which takes as long as all other imports of a router.
        from signalbox_router.apis.connect.web_servicer import methods_of
        from signalbox_router.http.server_factory import make_http_server

        add_operations = operations_pb2_grpc.add_OperationsServiceServicer_to_server
        add_inference = inference_pb2_grpc.add_InferenceServiceServicer_to_server
        methods = methods_of(self._servicer, add_inference, self._messages)
        methods |= methods_of(self._operations_servicer, add_operations, self._messages)
        return make_http_server(
            config,
            self.generator,
            tenants,
            keys,
            self.registry,
            self._adapters,
            methods,
            self._count_malformed,
        )

    def _add_services(self, tenants: Tenants, config: RouterConfig) -> None:
        self.server.add(
            self._servicer,
            inference_pb2_grpc.add_InferenceServiceServicer_to_server,
            name=SERVICE_NAME,
        )
        self.server.add(
            VllmEngineServicer(
                self.generator,
                tenants=tenants,
                load=self._load,
                messages=self._messages,
                version=config.version,
                is_serving=lambda: self.server.is_serving(VLLM_SERVICE),
            ),
            vllm_engine_pb2_grpc.add_VllmEngineServicer_to_server,
            name=VLLM_SERVICE,
        )
        self.server.add(
            self._operations_servicer,
            operations_pb2_grpc.add_OperationsServiceServicer_to_server,
            name=OPERATIONS_SERVICE,
        )
        self.server.set_serving(OPERATIONS_SERVICE, serving=True)  # also without a model

    async def start(self) -> int:
        """Listens, begins to look for schedulers, returns the port. Raises PortInUse."""
        port = await self.server.start()
        if self.http is not None:
            await self.http.start()
        if self.metrics_server is not None:
            await self.metrics_server.start()
        self._connecting.append(asyncio.create_task(self.schedulers.run(), name="schedulers"))
        if self._launcher is not None:
            watching = self._launcher.run(
                self.starts,
                on_change=self.schedulers.launched_changed,
                uses=self.schedulers.uses,
            )
            self._connecting.append(asyncio.create_task(watching, name="launcher"))
        logger.info("gRPC at %s", self.server.address)
        return port

    async def drain(self, *, grace_s: float) -> None:
        """Accepts no new requests; returns when the running ones have ended, within grace_s."""
        self.stop_serving()
        self._operations.end()
        drains = [self.server.drain(grace_s=grace_s)]
        if self.http is not None:
            drains.append(self.http.drain(grace_s=grace_s))
        await asyncio.gather(*drains)

    def stop_serving(self) -> None:
        """Reports NOT_SERVING over gRPC and answers 503 over HTTP."""
        self.server.stop_serving()
        if self.http is not None:
            self.http.stop_serving()

    async def stop(self) -> None:
        """Closes ports and connections to schedulers, also if the router never started or
        drained.

        gRPC must have no tasks left when the event loop closes: they could not end, and would print
        errors to standard error when the interpreter exits.
        """
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await self.starts.close()
        if self.metrics_server is not None:
            await self.metrics_server.stop()
        await self.drain(grace_s=0.0)
        if self._first_use is not None:
            await self._first_use.close()
        await self._load.close()
        await self._operations.close()

    def _count_malformed(self, method: str) -> None:
        if operation := (OPERATIONS | VLLM_OPERATIONS).get(method):
            self.generator.unread(
                operation,
                Code.INVALID_ARGUMENT,
                "the bytes are no message of this method's type",
            )

    def _set_serving(self, serving: bool) -> None:
        self.server.set_serving(SERVICE_NAME, VLLM_SERVICE, serving=serving)
        if not serving:
            return
        if self.http is not None and not self._has_served:
            scheme = "https" if self._tls.serves else "http"
            logger.info("HTTP at %s://%s/v1", scheme, self.http.address)
        self._has_served = True
        self._on_serving(self.schedulers.models.first)


async def run(
    config: RouterConfig, *, on_serving: Callable[[str], None] = lambda _name: None
) -> None:
    """Serves until SIGTERM or SIGINT. Health is NOT_SERVING until a model is served."""
    router = Router(config, on_serving=on_serving)
    try:
        await router.start()
        await run_until_signalled(router, grace_s=config.drain_timeout)
    finally:
        await router.stop()


def _grpc_server(
    config: RouterConfig,
    keys: KeyRing | None,
    messages: LargeMessages,
    on_malformed: Callable[[str], None],
) -> Server:
    return Server(
        Endpoint(host=config.host, port=config.grpc_port, tls=config.tls, remedy=GRPC_REMEDY),
        reflection=config.serves_reflection,
        interceptors=[
            *([KeyInterceptor(keys)] if keys else []),
            messages,
            SlowClientInterceptor(config.client_stall_timeout),
        ],
        bounds=CallBounds(
            max_connections=config.max_grpc_connections,
            max_streams=config.max_grpc_streams,
            request_timeout_s=config.grpc_request_timeout,
        ),
        on_malformed=on_malformed,
    )


def _key_ring(config: RouterConfig, metrics: RouterMetrics) -> KeyRing | None:
    if config.api_keys is None and not config.api_key:
        return None
    return KeyRing(
        config.api_keys,
        digests=tuple(sha256(key.get_secret_value().encode()).digest() for key in config.api_key),
        on_refused=lambda: metrics.rejected("UNAUTHENTICATED"),
    )

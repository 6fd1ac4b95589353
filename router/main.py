"""One router process: waits for the scheduler and a worker, serves, drains."""

import asyncio
import logging

from protos.inference.v1 import inference_pb2_grpc
from router.admission import Admission
from router.config import RouterConfig
from router.generation import Generator
from router.scheduler_client import SchedulerConnection
from router.servicer import SERVICE_NAME, InferenceServicer
from router.tenants import Tenants
from rpc.server import Server, run_until_signalled

logger = logging.getLogger(__name__)


class Router:
    """The parts of a router, wired; also what tests start."""

    def __init__(self, config: RouterConfig) -> None:
        self.server = Server(host=config.host, port=config.port, reflection=config.reflection)
        self.scheduler = SchedulerConnection(
            config.scheduler_addresses[0],
            tokenizer_threads=config.tokenizer_threads,
            model_poll_s=config.model_poll_s,
            on_serving=self._set_serving,
        )
        self.admission = Admission(config, self.scheduler)
        self.generator = Generator(
            self.admission, self.scheduler, tool_call_parser=config.tool_call_parser
        )
        self.server.add(
            InferenceServicer(
                self.generator, tenants=Tenants(trust_header=config.trust_tenant_header)
            ),
            inference_pb2_grpc.add_InferenceServiceServicer_to_server,
            name=SERVICE_NAME,
        )
        self._connecting: asyncio.Task[None] | None = None

    async def start(self) -> int:
        """Listens, begins to look for the scheduler, returns the port. Raises PortInUse."""
        port = await self.server.start()
        self._connecting = asyncio.create_task(self.scheduler.run(), name="scheduler connection")
        logger.info("router listens on %s", self.server.address)
        return port

    async def stop(self) -> None:
        """Lets go of the scheduler, to be called when the server has drained."""
        if self._connecting is not None:
            self._connecting.cancel()
            await asyncio.gather(self._connecting, return_exceptions=True)

    def _set_serving(self, serving: bool) -> None:
        self.server.set_serving(SERVICE_NAME, serving=serving)


async def run(config: RouterConfig) -> None:
    """Serves until SIGTERM or SIGINT. Health is NOT_SERVING until the model is known."""
    router = Router(config)
    await router.start()
    try:
        await run_until_signalled(router.server, grace_s=config.grace_s)
    finally:
        await router.stop()

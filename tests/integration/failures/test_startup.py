"""While a worker starts: what clients are told, over gRPC and HTTP, until it serves or dies."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator

import grpc
import httpx2
import pytest

from signalbox_contract.startup import StartupPhase, StartupProgress
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_router.main import Router
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker import main as worker_main
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.startup_client import Startup
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.integration.stack import running_scheduler, until_serving
from tests.router.stack import make_config
from tests.waiting import EVENT_S

WAIT_S = EVENT_S


class StartingWorker:
    """A worker as a process runs it, which loads until the test lets it."""

    def __init__(self, scheduler_address: str) -> None:
        self.startup = Startup()
        self._may_load = threading.Event()
        self.task = asyncio.create_task(
            worker_main.run(
                self._make_runner,
                WorkerSettings(simulate=True, scheduler=scheduler_address),
                self.startup,
            )
        )

    def _make_runner(self) -> Runner:
        self._may_load.wait(WAIT_S)
        return SimulatedRunner(SimulatedConfig())

    def finish_loading(self) -> None:
        self._may_load.set()

    async def die(self) -> None:
        self.task.cancel()
        self._may_load.set()
        await asyncio.gather(self.task, return_exceptions=True)


@contextlib.asynccontextmanager
async def starting_router(scheduler_address: str) -> AsyncIterator[Router]:
    """A router that listens and knows no model."""
    router = Router(make_config(scheduler_address, http_port=0))
    await router.start()
    try:
        yield router
    finally:
        await router.drain(grace_s=0)
        await router.stop()


async def grpc_error(router: Router) -> str:
    async with open_channel(router.server.address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async for _ in pb_grpc.InferenceServiceStub(channel).Generate(
                pb.GenerateRequest(text="hello")
            ):
                pass
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    return caught.value.details() or ""


async def http_error(router: Router) -> str:
    assert router.http is not None
    async with httpx2.AsyncClient(trust_env=False) as client:
        answer = await client.get(f"http://{router.http.address}/health")
    assert answer.status_code == 503
    return str(answer.json()["error"]["message"])


async def until_errors_say(router: Router, expected: str) -> None:
    async with asyncio.timeout(WAIT_S):
        while expected not in await grpc_error(router):
            pass


async def test_errors_and_health_name_the_phase_until_the_worker_serves() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        starting_router(scheduler.address) as router,
    ):
        await until_errors_say(router, "no worker serves")
        worker = StartingWorker(scheduler.address)
        worker.startup.set(StartupProgress(StartupPhase.COMPILE, 3, 13))
        await until_errors_say(router, "a worker is compiling the CPU kernels, 3 of 13 (")
        worker.startup.set(StartupProgress(StartupPhase.LOAD, 1, 2))
        await until_errors_say(router, "a worker is loading the weights, 50 % (")
        assert "a worker is loading the weights, 50 % (" in await http_error(router)
        worker.finish_loading()
        await until_serving(router.server.address)
        async with open_channel(router.server.address) as channel:
            stub = pb_grpc.InferenceServiceStub(channel)
            assert (await stub.GetModel(pb.GetModelRequest())).name == "simulated"
        await worker.die()
        await until_errors_say(router, "no worker serves")
        assert "a worker is" not in await grpc_error(router)  # its reports ended when it joined


async def test_a_worker_that_dies_while_it_loads_is_named_no_more() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        starting_router(scheduler.address) as router,
    ):
        worker = StartingWorker(scheduler.address)
        worker.startup.set(StartupProgress(StartupPhase.FETCH, 1 << 20, 5 << 20))
        await until_errors_say(router, "a worker is fetching the model, 1 of 5 MiB")
        await worker.die()
        async with asyncio.timeout(WAIT_S):
            while "fetching" in await http_error(router):
                pass
        assert "no worker serves" in await grpc_error(router)
        assert not scheduler.cluster.step_loops

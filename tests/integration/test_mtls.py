"""The services under mTLS on every hop: a request passes, and no peer exceeds its role."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import grpc
import pytest

from signalbox_protos.inference.v1 import inference_pb2, inference_pb2_grpc
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc, stats_pb2
from signalbox_protos.worker.v1 import worker_pb2, worker_pb2_grpc
from signalbox_router.main import Router
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.tls import TlsConfig
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.main import serving
from signalbox_worker.main import CALLERS
from signalbox_worker.service.registration_client import Registration, RegistrationRefused
from signalbox_worker.service.servicer import SERVICE_NAME, WorkerServicer
from signalbox_worker.service.worker import Worker
from tests.integration.stack import simulated
from tests.router.stack import make_config
from tests.rpc.certificates import Authority, tls_settings
from tests.waiting import EVENT_S

STACK_S = EVENT_S


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@asynccontextmanager
async def worker(
    scheduler: str, tls: TlsConfig
) -> AsyncIterator[tuple[Server, "asyncio.Task[None]"]]:
    loaded = await Worker.load(simulated())
    server = Server(Endpoint(tls=tls), callers=CALLERS)
    server.add(
        WorkerServicer(loaded),
        worker_pb2_grpc.add_WorkerServiceServicer_to_server,
        name=SERVICE_NAME,
    )
    await server.start()
    registration = Registration(
        worker=loaded,
        scheduler_address=scheduler,
        advertised_address=server.address,
        tls=tls,
    )
    task = asyncio.create_task(registration.run())
    try:
        yield server, task
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await server.drain(grace_s=0)
        loaded.close()


async def test_a_request_passes_every_hop_under_mtls(authority: Authority) -> None:
    serves = asyncio.Event()
    scheduler_tls = authority.member("scheduler", "127.0.0.1")
    async with AsyncExitStack() as stack, asyncio.timeout(STACK_S):
        scheduler, _ = await stack.enter_async_context(
            serving(SchedulerConfig(port=0, **tls_settings(scheduler_tls)))
        )
        # Its address is in no certificate: it is known by the name that it registered with.
        await stack.enter_async_context(worker(scheduler.address, authority.member("worker.one")))
        router = Router(
            make_config(scheduler.address, **tls_settings(authority.member("router", "127.0.0.1"))),
            on_serving=lambda _name: serves.set(),
        )
        await router.start()
        stack.push_async_callback(router.stop)
        stack.push_async_callback(router.drain, grace_s=0)
        await serves.wait()
        client = open_channel(router.server.address, tls=authority.member("client"))
        await stack.enter_async_context(client)
        stub = inference_pb2_grpc.InferenceServiceStub(client)
        params = inference_pb2.SamplingParams(max_tokens=3, ignore_eos=True)
        request = inference_pb2.GenerateRequest(text="hello", sampling_params=params)
        answers = [answer async for answer in stub.Generate(request)]
        assert answers[-1].usage.completion_tokens == 3


async def test_only_a_scheduler_may_call_a_worker_and_only_a_worker_register(
    authority: Authority,
) -> None:
    scheduler_tls = authority.member("scheduler", "127.0.0.1")
    async with AsyncExitStack() as stack, asyncio.timeout(STACK_S):
        scheduler, _ = await stack.enter_async_context(
            serving(SchedulerConfig(port=0, **tls_settings(scheduler_tls)))
        )
        _, registering = await stack.enter_async_context(
            worker(scheduler.address, authority.member("router", "127.0.0.1"))
        )
        with pytest.raises(RegistrationRefused, match=r"PERMISSION_DENIED.*for worker"):
            await registering
        server, _ = await stack.enter_async_context(
            worker(scheduler.address, authority.member("worker", "127.0.0.1"))
        )
        for name in ("router", "worker.two", "operator"):
            channel = open_channel(server.address, tls=authority.member(name))
            await stack.enter_async_context(channel)
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            calls = [stub.InitCacheEngine(worker_pb2.InitCacheEngineRequest())]
            if name == "operator":  # may look: at what it is, and at what it does
                await stub.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest())
            else:
                calls += [stub.GetWorkerInfo(worker_pb2.GetWorkerInfoRequest())]
            for call in calls:
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await call
                assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED, name


async def test_an_operator_may_ask_but_not_send_requests(authority: Authority) -> None:
    scheduler_tls = authority.member("scheduler", "127.0.0.1")
    async with AsyncExitStack() as stack, asyncio.timeout(STACK_S):
        scheduler, _ = await stack.enter_async_context(
            serving(SchedulerConfig(port=0, **tls_settings(scheduler_tls)))
        )
        channel = open_channel(scheduler.address, tls=authority.member("operator"))
        await stack.enter_async_context(channel)
        stub = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        await stub.GetStats(stats_pb2.GetStatsRequest())
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Connect().read()
        assert caught.value.code() is grpc.StatusCode.PERMISSION_DENIED

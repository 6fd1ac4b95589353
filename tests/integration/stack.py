"""The services in one process, over real gRPC on loopback ports, so that tests can look inside."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from signalbox.commands.inspect.readings import read
from signalbox_contract import updates
from signalbox_contract.logprobs import TokenLogprobs
from signalbox_contract.pooling import Vector
from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_protos.scheduler.v1.sample_pb2 import Sample
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_router.main import Router as RouterService
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.main import serving
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.registration_client import Registration
from signalbox_worker.service.servicer import SERVICE_NAME, WorkerServicer
from signalbox_worker.service.worker import Worker
from tests.chaos.fault_proxy import FaultProxy
from tests.router.stack import make_config
from tests.scheduler_svc.make import is_moving
from tests.waiting import EVENT_S, eventually


@dataclass(slots=True)
class RunningScheduler:
    server: Server
    cluster: Cluster
    config: SchedulerConfig

    @property
    def address(self) -> str:
        return self.server.address

    async def kill(self) -> None:
        """Drops every connection at once, as a process that dies does."""
        await self.server.drain(grace_s=0)


@contextlib.asynccontextmanager
async def running_scheduler(config: SchedulerConfig) -> AsyncIterator[RunningScheduler]:
    async with serving(config) as (server, cluster):
        yield RunningScheduler(server, cluster, config)


@contextlib.asynccontextmanager
async def restarted(scheduler: RunningScheduler) -> AsyncIterator[RunningScheduler]:
    """Another scheduler in the place of one that dies; both have the `free_port()` of a test."""
    assert scheduler.config.port, "the kernel may give the port to others meanwhile"
    await scheduler.kill()
    async with running_scheduler(scheduler.config) as another:
        yield another


async def until_workers(scheduler: RunningScheduler, num_workers: int) -> None:
    await eventually(lambda: len(scheduler.cluster.step_loops) == num_workers)


async def assert_idle(scheduler: RunningScheduler) -> None:
    """Every request, step, move of blocks and audit ends, and then every block is free."""
    cluster, loops = scheduler.cluster, scheduler.cluster.step_loops
    await eventually(lambda: not len(cluster.requests))
    await eventually(lambda: not any(one.scheduler.has_unfinished for one in loops))
    await eventually(lambda: not any(is_moving(one.scheduler) for one in loops))
    pools = [
        pool for loop in loops for pool in (loop.scheduler.blocks.gpu, loop.scheduler.blocks.cpu)
    ]
    await eventually(lambda: all(one.num_free == one.num_blocks for one in pools))
    cluster.check()


def assert_replays(recording: Path) -> None:
    """Each recorded decision is repeated, and nothing is left at the end."""
    replay = Replay(str(recording), checks=True)
    assert replay.run() is None
    assert replay.num_left_over == 0


@dataclass(slots=True)
class RunningWorker:
    worker: Worker
    server: Server
    registration: Registration
    task: "asyncio.Task[None]"

    async def kill(self) -> None:
        """Drops every connection at once, as a process that dies does."""
        self.task.cancel()
        await asyncio.gather(self.task, return_exceptions=True)
        await self.server.drain(grace_s=0)


@contextlib.asynccontextmanager
async def running_worker(
    scheduler_address: str,
    make_runner: Callable[[], Runner],
    *,
    behind: FaultProxy | None = None,
    adapter_dir: Path | None = None,
    role: WorkerRole = WorkerRole.BOTH,
) -> AsyncIterator[RunningWorker]:
    """A registered worker; `behind` a proxy, which has started, the scheduler reaches it there."""
    worker = await Worker.load(make_runner, adapter_dir=adapter_dir)
    server = Server(Endpoint())
    server.add(
        WorkerServicer(worker),
        worker_pb2_grpc.add_WorkerServiceServicer_to_server,
        name=SERVICE_NAME,
    )
    port = await server.start()
    if behind is not None:
        behind.target, port = port, behind.port
    registration = Registration(
        worker=worker,
        scheduler_address=scheduler_address,
        advertised_address=f"127.0.0.1:{port}",
        role=role,
    )
    running = RunningWorker(worker, server, registration, asyncio.create_task(registration.run()))
    try:
        yield running
    finally:
        await running.kill()
        worker.close()


@contextlib.asynccontextmanager
async def running_router(
    *scheduler_addresses: str, **settings: Any
) -> AsyncIterator[RouterService]:
    """A router that knows the model."""
    service = RouterService(make_config(*scheduler_addresses, **settings))
    await service.start()
    try:
        await until_serving(service.server.address)
        yield service
    finally:
        await service.server.drain(grace_s=0)
        await service.stop()


async def until_serving(address: str) -> None:
    """Waits for the overall health of a server."""
    async with asyncio.timeout(EVENT_S), open_channel(address) as channel:
        async for answer in health_pb2_grpc.HealthStub(channel).Watch(
            health_pb2.HealthCheckRequest()
        ):
            if answer.status == health_pb2.HealthCheckResponse.SERVING:
                return


def count(samples: Iterable[Sample], name: str, **labels: str) -> float:
    """Returns what an answer to GetStats counts, or how many values a histogram has."""
    return read((), samples, seconds=1).total(name, **labels)


def simulated(**settings: Any) -> Callable[[], Runner]:
    return lambda: SimulatedRunner(SimulatedConfig(**settings))


@dataclass(slots=True)
class Got:
    """What came back for one request."""

    tokens: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    reasons: dict[int, int] = field(default_factory=dict)
    vector: Vector | None = None
    end: pb.FinishedRequest | None = None

    def assert_served(self) -> None:
        assert self.end is not None
        assert self.end.code == 0, self.end.message


class Router:
    """A bare router: one Connect stream, and what it has received by handle."""

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self.stub = pb_grpc.SchedulerServiceStub(self._channel)
        self.call = self.stub.Connect()
        self.got: dict[int, Got] = {}
        self.num_model_changes = 0
        self._reader = asyncio.create_task(self._read())

    async def _read(self) -> None:
        async for message in self.call:
            self.num_model_changes += message.model_changed
            outputs = message.updates
            self._add_tokens(outputs)
            for handle, vector in updates.decode(outputs).pooled:
                assert self.got[handle].vector is None, "a request has two vectors"
                self.got[handle].vector = vector
            for finished in outputs.finished_sequences:
                self.got[finished.handle].reasons[finished.index] = finished.reason
            for ended in outputs.finished_requests:
                assert self.got[ended.handle].end is None, "a request ended twice"
                self.got[ended.handle].end = ended

    def _add_tokens(self, outputs: pb.RequestUpdates) -> None:
        for handle, index, token_ids, logprobs in updates.decode(outputs).runs():
            got = self.got[handle]
            assert got.end is None, "a token came after the end"
            got.tokens.setdefault(index, []).extend(token_ids)
            got.logprobs.setdefault(index, []).extend(logprobs)

    async def add(self, handle: int, prompt: Iterable[int], **fields: object) -> None:
        self.got[handle] = Got()
        request = pb.Request(handle=handle, request_id=f"r{handle}", prompt_token_ids=list(prompt))
        request.max_tokens, request.num_sequences = 16, 1
        request.sampling_params.top_p = 1.0
        request.MergeFrom(pb.Request(**fields))
        await self.call.write(pb.ConnectRequest(add_request=request))

    async def abort(self, handle: int) -> None:
        message = pb.AbortRequest(handle=handle)
        await self.call.write(pb.ConnectRequest(abort_request=message))

    async def ended(self, *handles: int) -> list[Got]:
        await eventually(lambda: all(self.got[h].end for h in handles))
        return [self.got[handle] for handle in handles]

    async def close(self) -> None:
        self.call.cancel()
        await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()


@contextlib.asynccontextmanager
async def router(address: str) -> AsyncIterator[Router]:
    connected = Router(address)
    try:
        yield connected
    finally:
        await connected.close()

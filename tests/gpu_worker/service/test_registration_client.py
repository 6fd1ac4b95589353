"""Joining a scheduler, losing it, and leaving."""

import asyncio
import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import pytest

from signalbox_contract.errors import FailedPrecondition
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc
from signalbox_rpc.transport.listening_ports import Endpoint, PortInUse
from signalbox_rpc.transport.server import Server
from signalbox_worker import main
from signalbox_worker.main import advertised_address
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.registration_client import Registration, RegistrationRefused
from signalbox_worker.service.worker import NO_EPOCH, Worker
from signalbox_worker.service.worker_settings import WorkerSettings
from tests.gpu_worker.builders import make_config
from tests.ports import free_port
from tests.waiting import EVENT_S, eventually

INTERVAL_S = 0.05


class FakeRegistry(scheduler_pb2_grpc.WorkerRegistryServiceServicer):
    """Takes workers in, and repeats heartbeats while `answers` is set."""

    def __init__(self) -> None:
        self.joins: list[pb.Join] = []
        self.states: list[int] = []
        self.refusal: Exception | None = None
        self.answers = True
        self.drains = True
        self.has_ended_in_order = False
        self.accepts = asyncio.Event()
        self.accepts.set()

    async def Register(
        self, requests: AsyncIterator[pb.RegisterRequest], context: object
    ) -> AsyncIterator[pb.RegisterResponse]:
        self.joins.append((await anext(requests)).join)
        if self.refusal is not None:
            raise self.refusal
        await self.accepts.wait()
        interval_ns = int(INTERVAL_S * 1e9)
        yield pb.RegisterResponse(accepted=pb.Accepted(heartbeat_interval_ns=interval_ns))
        async for request in requests:
            self.states.append(request.heartbeat.state)
            if request.heartbeat.state == pb.WORKER_STATE_DRAINING and self.drains:
                yield pb.RegisterResponse(drained=pb.Drained())
            if self.answers:
                yield pb.RegisterResponse(heartbeat=request.heartbeat)
        self.has_ended_in_order = True


async def start_registry(registry: FakeRegistry, port: int = 0) -> tuple[Server, int]:
    server = Server(Endpoint(port=port))
    server.add(
        registry,
        scheduler_pb2_grpc.add_WorkerRegistryServiceServicer_to_server,
        name="signalbox.scheduler.v1.WorkerRegistryService",
    )
    return server, await server.start()


async def make_registration(port: int) -> tuple[Worker, Registration]:
    worker = await Worker.load(lambda: SimulatedRunner(make_config()))
    registration = Registration(
        worker=worker, scheduler_address=f"127.0.0.1:{port}", advertised_address=":50061"
    )
    return worker, registration


@dataclass
class Joining:
    """A worker that registers with a registry, until the block ends."""

    registry: FakeRegistry
    server: Server
    port: int
    worker: Worker
    registration: Registration
    running: asyncio.Task[None]

    async def drain(self, *, timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(EVENT_S):
            await self.registration.drain(timeout_s=timeout_s)
            await self.running


@asynccontextmanager
async def joining(*, accepts: bool = True, drains: bool = True) -> AsyncIterator[Joining]:
    registry = FakeRegistry()
    registry.drains = drains
    if not accepts:
        registry.accepts.clear()
    server, port = await start_registry(registry)
    worker, registration = await make_registration(port)
    running = asyncio.create_task(registration.run())
    joined = Joining(registry, server, port, worker, registration, running)
    try:
        if accepts:
            await registration.wait_accepted()
        yield joined
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await joined.server.drain(grace_s=0)
    assert worker.epoch == NO_EPOCH


async def test_a_worker_joins_with_a_nonce_and_keeps_beating() -> None:
    async with joining() as it:
        await eventually(lambda: len(it.registry.states) > 4)
        (join,) = it.registry.joins
        assert join.epoch == it.worker.epoch != NO_EPOCH
        assert join.address == ":50061"
        assert join.model.tokenizer_sha256 == it.worker.model.tokenizer_sha256
        assert join.capacity.num_gpu_blocks == 16
        assert set(it.registry.states) == {pb.WORKER_STATE_READY}


@pytest.mark.parametrize(
    ("start_s", "expected"), [(0.0, "WARNING"), (1e9, "INFO")], ids=["for long", "at first"]
)
async def test_what_a_worker_waits_for_is_logged_once_and_again_when_it_changes(
    start_s: float,
    expected: str,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    caplog.set_level("INFO")
    monkeypatch.setattr("signalbox_worker.service.registration_client.MAX_BACKOFF_S", 0.01)
    monkeypatch.setattr("signalbox_worker.service.registration_client.START_S", start_s)
    port, epochs = free_port(), list[int]()
    worker, registration = await make_registration(port)
    begin_epoch = worker.begin_epoch
    monkeypatch.setattr(worker, "begin_epoch", lambda one: (epochs.append(one), begin_epoch(one)))

    def levels() -> list[str]:
        told = (one for one in caplog.records if "waiting for the scheduler" in one.getMessage())
        return [one.levelname for one in told]

    running = asyncio.create_task(registration.run())
    await eventually(lambda: len(epochs) > 20)
    assert levels() == [expected]
    server, _ = await start_registry(FakeRegistry(), port)
    async with asyncio.timeout(EVENT_S):
        await registration.wait_accepted()
    assert levels() == [expected]
    await server.drain(grace_s=0)
    await eventually(lambda: len(levels()) > 1)
    registration._remind("a")
    count = len(levels())
    for reason in "aba":
        registration._remind(reason)
    assert len(levels()) == count + 1
    assert set(levels()[1:]) == {"WARNING"}  # a scheduler that was there is missed at once
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def test_the_epoch_is_known_before_the_scheduler_accepts() -> None:
    """The scheduler dials back and initialises the cache in between."""
    async with joining(accepts=False) as it:
        await eventually(lambda: it.registry.joins)
        epoch = it.worker.epoch
        assert epoch == it.registry.joins[0].epoch
        await it.worker.init_cache_engine(epoch=epoch, num_gpu_blocks=16, num_cpu_blocks=0)
        assert not it.registration.is_accepted
        it.registry.accepts.set()
        await it.registration.wait_accepted()


async def test_a_scheduler_that_comes_back_gets_a_new_nonce() -> None:
    async with joining() as it:
        await it.server.drain(grace_s=0)
        await eventually(lambda: not it.registration.is_accepted)
        it.server, _ = await start_registry(it.registry, it.port)
        async with asyncio.timeout(EVENT_S):
            await it.registration.wait_accepted()
        epochs = [join.epoch for join in it.registry.joins]
        assert len(set(epochs)) == len(epochs) >= 2
        assert it.worker.epoch == epochs[-1]


async def test_a_silent_scheduler_is_lost() -> None:
    async with joining() as it:
        first = it.worker.epoch
        it.registry.answers = False
        await eventually(lambda: len(it.registry.joins) > 1)
        assert it.worker.epoch != first


async def test_a_refused_worker_gives_up_with_the_reason() -> None:
    registry = FakeRegistry()
    registry.refusal = FailedPrecondition("the workers before it serve another model")
    server, port = await start_registry(registry)
    _, registration = await make_registration(port)
    with pytest.raises(RegistrationRefused, match="another model") as caught:
        await registration.run()
    assert "\n" not in str(caught.value)
    await server.drain(grace_s=0)


async def test_draining_waits_for_the_scheduler() -> None:
    async with joining(drains=False) as it:
        draining = asyncio.create_task(it.drain())
        await eventually(lambda: pb.WORKER_STATE_DRAINING in it.registry.states)
        count = len(it.registry.states)
        await eventually(lambda: len(it.registry.states) > count + 2)
        assert not draining.done()
        it.registry.drains = True
        await draining


async def test_draining_ends_when_the_scheduler_is_gone() -> None:
    async with joining(drains=False) as it:
        draining = asyncio.create_task(it.drain())
        await eventually(lambda: pb.WORKER_STATE_DRAINING in it.registry.states)
        await it.server.drain(grace_s=0)
        await draining


async def test_a_worker_that_has_no_time_to_drain_ends_its_registration_in_order() -> None:
    async with joining(drains=False) as it:
        await it.drain(timeout_s=0.1)
        assert pb.WORKER_STATE_DRAINING in it.registry.states
        assert it.registry.has_ended_in_order
        assert len(it.registry.joins) == 1


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_signalled_worker_leaves(accepted: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    registry = FakeRegistry()
    server, port = await start_registry(registry)
    if not accepted:
        await server.drain(grace_s=0)
    running = asyncio.create_task(run_worker(scheduler_port=port))
    if accepted:
        await eventually(lambda: len(registry.states) > 1)
    else:
        await eventually(lambda: "waiting for the scheduler" in caplog.text)
    os.kill(os.getpid(), signal.SIGTERM)
    async with asyncio.timeout(EVENT_S):
        await running
    assert (pb.WORKER_STATE_DRAINING in registry.states) is accepted
    assert ("drained: no request is left here" in caplog.text) is accepted
    await server.drain(grace_s=0)


async def test_a_refused_worker_stops_serving() -> None:
    registry = FakeRegistry()
    registry.refusal = FailedPrecondition("another model")
    server, port = await start_registry(registry)
    own_port = free_port()
    with pytest.raises(RegistrationRefused):
        await run_worker(scheduler_port=port, port=own_port)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", own_port))
    await server.drain(grace_s=0)


async def test_a_port_in_use_is_one_line() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(PortInUse) as caught:
            await run_worker(scheduler_port=1, port=taken.getsockname()[1])
    assert "\n" not in str(caught.value)


async def run_worker(*, scheduler_port: int, port: int = 0) -> None:
    loop = asyncio.get_running_loop()
    try:
        scheduler = f"127.0.0.1:{scheduler_port}"
        settings = WorkerSettings(simulate=True, port=port, scheduler=scheduler, drain_timeout=2)
        await main.run(lambda: SimulatedRunner(make_config()), settings)
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)


@pytest.mark.parametrize(
    ("host", "advertise", "expected"),
    [
        ("127.0.0.1", None, "127.0.0.1:9"),
        ("0.0.0.0", None, ":9"),
        ("::", None, ":9"),
        ("::1", None, "[::1]:9"),
        ("0.0.0.0", "worker-0", "worker-0:9"),
        ("0.0.0.0", "worker-0:80", "worker-0:80"),
        ("0.0.0.0", "fe80::1", "[fe80::1]:9"),
        ("0.0.0.0", "[fe80::1]", "[fe80::1]:9"),
        ("0.0.0.0", "[fe80::1]:80", "[fe80::1]:80"),
    ],
)
def test_the_advertised_address(host: str, advertise: str | None, expected: str) -> None:
    assert advertised_address(host=host, port=9, advertise=advertise) == expected

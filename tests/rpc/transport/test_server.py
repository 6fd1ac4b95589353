"""A server tells its health, refuses a taken port, drains."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterable

import grpc
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2

from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.listening_ports import BindError, Endpoint, PortInUse
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.tls import TlsConfig
from tests.chaos.fault_proxy import fault_proxy
from tests.grpc_errors import code_of
from tests.rpc.echo import NAME, Echo, call, serving, text
from tests.waiting import EVENT_S, run_ready_tasks

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE_UNKNOWN = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN


def watch(channel: grpc.aio.Channel, service: str):  # type: ignore[no-untyped-def]
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=service))


async def test_health_is_told_for_each_service_and_for_all() -> None:
    async with serving(Echo()) as (server, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        for service in ("", NAME):
            answer = await stub.Check(health_pb2.HealthCheckRequest(service=service))
            assert answer.status == SERVING
        server.set_serving(NAME, serving=False)
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == NOT_SERVING


async def test_health_of_all_services_is_listed_and_described_by_reflection() -> None:
    async with serving(Echo(), reflection=True) as (server, channel):
        server.set_serving("other", serving=False)
        health = "grpc.health.v1"
        symbol = f"{health}.Health"
        described = await reflected(channel, REFLECTIONS[0], file_containing_symbol=symbol)
        pool = descriptor_pool.DescriptorPool()  # as a client that has no other description
        for file in described.file_descriptor_response.file_descriptor_proto:
            pool.AddSerializedFile(file)
        kind = message_factory.GetMessageClass(
            pool.FindMessageTypeByName(f"{health}.HealthListResponse")
        )
        ask = channel.unary_unary(f"/{health}.Health/List", response_deserializer=kind.FromString)
        statuses = (await ask(b"")).statuses
        assert {name: one.status for name, one in statuses.items()} == {
            "": NOT_SERVING,
            NAME: SERVING,
            "other": NOT_SERVING,
        }


async def test_health_of_an_unknown_service_is_not_found() -> None:
    async with serving(Echo()) as (_, channel):
        stub = health_pb2_grpc.HealthStub(channel)
        unknown = stub.Check(health_pb2.HealthCheckRequest(service="other"))
        assert await code_of(unknown) is grpc.StatusCode.NOT_FOUND
        assert (await watch(channel, "other").read()).status == SERVICE_UNKNOWN


async def test_a_watch_stays_open_when_another_leaves() -> None:
    async with serving(Echo()) as (server, channel):
        first, second = watch(channel, NAME), watch(channel, NAME)
        assert [(await w.read()).status for w in (first, second)] == [SERVING, SERVING]
        first.cancel()
        await asyncio.sleep(0.05)
        server.set_serving(NAME, serving=False)
        assert (await second.read()).status == NOT_SERVING
        server.set_serving(NAME, serving=True)
        assert (await second.read()).status == SERVING


REFLECTIONS = ("grpc.reflection.v1.ServerReflection", "grpc.reflection.v1alpha.ServerReflection")
DETAILS = ("Status", "BadRequest", "ErrorInfo", "RetryInfo", "QuotaFailure", "Help")


async def reflected(
    channel: grpc.aio.Channel, service: str, **asked: str
) -> reflection_pb2.ServerReflectionResponse:
    """Asks one service by its path; the messages of both versions have the same bytes."""
    ask = channel.stream_stream(
        f"/{service}/ServerReflectionInfo",
        request_serializer=reflection_pb2.ServerReflectionRequest.SerializeToString,
        response_deserializer=reflection_pb2.ServerReflectionResponse.FromString,
    )
    (answer,) = [one async for one in ask(iter([reflection_pb2.ServerReflectionRequest(**asked)]))]
    return answer


@pytest.mark.parametrize("service", REFLECTIONS)
async def test_reflection_lists_the_services(service: str) -> None:
    async with serving(Echo(), reflection=True) as (_, channel):
        answer = await reflected(channel, service, list_services="")
        names = {service.name for service in answer.list_services_response.service}
        assert {NAME, "grpc.health.v1.Health", *REFLECTIONS} <= names


@pytest.mark.parametrize("service", REFLECTIONS)
async def test_reflection_describes_itself_and_the_details_of_errors(service: str) -> None:
    symbols = (*REFLECTIONS, *(f"google.rpc.{name}" for name in DETAILS))
    async with serving(Echo(), reflection=True) as (_, channel):
        for symbol in symbols:
            answer = await reflected(channel, service, file_containing_symbol=symbol)
            files = answer.file_descriptor_response.file_descriptor_proto
            assert _names_in(files) >= {symbol}
        missing = await reflected(channel, service, file_containing_symbol="google.rpc.None")
        assert missing.error_response.error_code == grpc.StatusCode.NOT_FOUND.value[0]


def _names_in(files: Iterable[bytes]) -> set[str]:
    """Returns the messages and services of files that form a pool of their own."""
    pool, names = descriptor_pool.DescriptorPool(), set()
    protos = [descriptor_pb2.FileDescriptorProto.FromString(file) for file in files]
    for proto in reversed(protos):  # what a file imports follows it
        pool.Add(proto)
    for proto in protos:
        described = pool.FindFileByName(proto.name)
        names |= {message.full_name for message in described.message_types_by_name.values()}
        names |= {service.full_name for service in described.services_by_name.values()}
    return names


async def test_a_taken_port_is_refused_in_one_line() -> None:
    async with serving(Echo()) as (server, _):
        with pytest.raises(PortInUse, match=rf"127\.0\.0\.1:{server.port}.*in use") as caught:
            await Server(Endpoint(port=server.port)).start()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("host", ["203.0.113.1", "no.such.host.invalid"])
async def test_a_foreign_host_is_refused_in_one_line(host: str) -> None:
    with pytest.raises(BindError, match=f"cannot listen on {host}") as caught:
        await Server(Endpoint(host=host, tls=TlsConfig(insecure=True))).start()
    assert "\n" not in str(caught.value)


async def test_a_message_over_the_limit_is_refused_and_the_server_goes_on() -> None:
    async with serving(Echo()) as (_, channel):
        large = call(channel, "unary", text("x" * (5 << 20)))
        assert await code_of(large) is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await call(channel, "unary", text("a")) == ["a"]


async def test_a_small_message_that_inflates_over_the_limit_is_refused() -> None:
    async with serving(Echo()) as (server, _):
        options = [("grpc.max_send_message_length", -1)]
        async with grpc.aio.insecure_channel(
            server.address, options=options, compression=grpc.Compression.Gzip
        ) as channel:
            large = call(channel, "unary", text("x" * (64 << 20)))
            assert await code_of(large) is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_a_drain_waits_for_running_calls_but_not_for_watches() -> None:
    released = asyncio.Event()

    async def wait(text: str) -> str:
        await released.wait()
        return text

    echo = Echo(lambda text: wait(text))
    async with serving(echo) as (server, channel):
        health = watch(channel, NAME)
        assert (await health.read()).status == SERVING
        answer = asyncio.ensure_future(call(channel, "unary", text("a")))
        await echo.a_start.wait()
        drain = asyncio.ensure_future(server.drain(grace_s=600))
        assert (await health.read()).status == NOT_SERVING
        await asyncio.sleep(0.1)  # a drain that waits for nothing would be done
        assert not drain.done()
        released.set()
        assert await answer == ["a"]
        async with asyncio.timeout(EVENT_S):
            await drain


async def test_a_drain_ends_after_what_a_call_does_when_it_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signalbox_rpc.transport.server.CUT_OFF_S", EVENT_S)
    may_end, is_cut_off, has_ended = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def wait(_text: str) -> str:
        try:
            await asyncio.Event().wait()
        finally:
            is_cut_off.set()
            await may_end.wait()
            has_ended.set()
        return "never"

    echo = Echo(wait)
    async with serving(echo) as (server, channel):
        cut_off = asyncio.ensure_future(call(channel, "unary", text("x")))
        await echo.a_start.wait()
        draining = asyncio.create_task(server.drain(grace_s=0))
        await is_cut_off.wait()
        assert server._stopping is not None
        await server._stopping
        await run_ready_tasks()
        assert not draining.done()
        may_end.set()
        await draining
        assert has_ended.is_set()
        await asyncio.gather(cut_off, return_exceptions=True)


async def test_a_drain_cuts_calls_off_after_the_grace_period() -> None:
    echo = Echo(lambda _text: asyncio.Event().wait())  # no call ends by itself
    async with serving(echo) as (server, channel):
        answer = asyncio.ensure_future(call(channel, "unary", text("a")))
        await echo.a_start.wait()
        async with asyncio.timeout(EVENT_S):
            await server.drain(grace_s=0.2)
        with pytest.raises((grpc.aio.AioRpcError, asyncio.CancelledError)):
            await answer


SLEEPER = """
import asyncio, sys
from signalbox_rpc.transport.shutdown import run_until_signalled
from signalbox_rpc.transport.listening_ports import Endpoint
from tests.rpc.echo import Echo, NAME, add_echo
from signalbox_rpc.transport.server import Server

async def sleep(text):
    print("called", flush=True)
    await asyncio.Event().wait()

async def main():
    server = Server(Endpoint())
    server.add(Echo(sleep), add_echo, name=NAME)
    await server.start()
    server.set_serving(NAME, serving=True)
    asyncio.get_running_loop().call_later(0.05, lambda: print(server.address, flush=True))
    await run_until_signalled(server, grace_s=600)

asyncio.run(main())
"""


async def start_sleeper(script: str = SLEEPER) -> tuple[asyncio.subprocess.Process, str]:
    """Returns the process and the first line that it prints: its port."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout
    return process, (await process.stdout.readline()).decode().strip()


async def called(process: asyncio.subprocess.Process) -> None:
    """Returns when the sleeper handles a call."""
    assert process.stdout
    assert await process.stdout.readline() == b"called\n"


async def test_collections_do_not_walk_what_was_there_when_serving_began() -> None:
    report = "import gc; print(gc.get_freeze_count(), *gc.get_threshold(), flush=True)"
    script = SLEEPER.replace("print(server.address, flush=True)", f"exec({report!r})")
    process, numbers = await start_sleeper(script)
    num_frozen, young, *_ = map(int, numbers.split())
    process.kill()
    await process.wait()
    assert num_frozen > 10_000
    assert young > 700


async def test_sigterm_without_calls_exits_with_0() -> None:
    process, _ = await start_sleeper()
    process.send_signal(signal.SIGTERM)
    async with asyncio.timeout(EVENT_S):
        assert await process.wait() == 0


async def test_a_second_signal_exits_at_once_with_1() -> None:
    process, address = await start_sleeper()
    async with open_channel(address) as channel:
        answer = asyncio.ensure_future(call(channel, "unary", text("a")))
        await called(process)
        health = watch(channel, NAME)
        assert (await health.read()).status == SERVING
        process.send_signal(signal.SIGTERM)
        assert (await health.read()).status == NOT_SERVING
        assert process.returncode is None
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(EVENT_S):
            assert await process.wait() == 1
        with pytest.raises(grpc.aio.AioRpcError):
            await answer


async def test_a_server_that_stands_still_is_noticed_by_its_silence() -> None:
    process, address = await start_sleeper()
    try:
        async with open_channel(address) as channel:
            answer = asyncio.ensure_future(call(channel, "unary", text("a")))
            await called(process)
            os.kill(process.pid, signal.SIGSTOP)
            async with asyncio.timeout(EVENT_S):
                assert await code_of(answer) is grpc.StatusCode.UNAVAILABLE
    finally:
        process.kill()
        await process.wait()


async def test_a_channel_that_is_opened_again_does_not_get_the_connection_of_another() -> None:
    """That one may no longer answer, and gRPC may keep it after its channel was closed."""
    async with serving(Echo()) as (server, _), fault_proxy(server.port) as link:
        async with open_channel(link.address) as first, open_channel(link.address) as second:
            assert await call(first, "unary", text("a")) == ["a"]
            assert await call(second, "unary", text("b")) == ["b"]
        assert link.num_accepted == 2

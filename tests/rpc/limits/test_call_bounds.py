"""Connections, streams, calls without a request and health watches are bounded, each by its own."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2_grpc

from signalbox_rpc.limits import call_bounds
from signalbox_rpc.limits.call_bounds import CallBounds, CallSlots
from tests.chaos.hostile import END_HEADERS, HEADERS, HTTP2_PREFACE, SETTINGS, frame, headers
from tests.rpc.echo import NAME, Echo, call, serving, text
from tests.waiting import EVENT_S, eventually

NEVER_S = 3600.0
BOUNDS = CallBounds(max_streams=16, request_timeout_s=NEVER_S)
NUM_SLOTS = BOUNDS.max_streams // call_bounds.PART_OF_STREAMS
EXHAUSTED = grpc.StatusCode.RESOURCE_EXHAUSTED
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_bounds, "PATIENCE_S", 0.05)


def own_channel(address: str) -> grpc.aio.Channel:
    """A channel with a connection that it shares with no other."""
    return grpc.aio.insecure_channel(address, options=[("grpc.use_local_subchannel_pool", 1)])


def half_open(channel: grpc.aio.Channel, kind: str = "unary") -> Any:
    """Begins a call that has one request, and sends none."""
    stub: Any = channel.stream_stream(f"/{NAME}/{kind}")
    return stub()


def watch(channel: grpc.aio.Channel) -> Any:
    stub = health_pb2_grpc.HealthStub(channel)
    return stub.Watch(health_pb2.HealthCheckRequest(service=NAME))


async def codes_of(calls: list[Any]) -> Counter[grpc.StatusCode]:
    """Returns the codes of those that have ended."""
    return Counter([await one.code() for one in calls if one.done()])


@contextlib.asynccontextmanager
async def calls_of(begin: Any, channel: grpc.aio.Channel, number: int) -> AsyncIterator[list[Any]]:
    """Yields calls that have a stream each, in this order."""
    calls = []
    try:
        for _ in range(number):
            calls.append(begin(channel))
            with contextlib.suppress(grpc.aio.AioRpcError):  # it is refused
                await calls[-1].wait_for_connection()
        yield calls
    finally:
        for one in calls:
            one.cancel()


@pytest.mark.parametrize("kind", ["unary", "server_stream"])
async def test_a_call_without_a_request_ends(kind: str, no_patience: None) -> None:
    bounds = CallBounds(request_timeout_s=0.2)
    async with serving(Echo(), bounds=bounds) as (_, channel), asyncio.timeout(EVENT_S):
        late = half_open(channel, kind)
        assert await late.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        assert "no request has come within 0.2 s" in await late.details()


@pytest.mark.parametrize("kind", ["unary", "server_stream"])
async def test_a_call_that_ends_its_requests_without_one_is_told_so(kind: str) -> None:
    async with serving(Echo()) as (_, channel), asyncio.timeout(EVENT_S):
        empty = half_open(channel, kind)
        await empty.done_writing()
        assert await empty.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "one message" in await empty.details()


async def test_a_request_that_is_late_is_served(no_patience: None) -> None:
    async with serving(Echo(), bounds=BOUNDS) as (_, channel), asyncio.timeout(EVENT_S):
        late = half_open(channel)
        await asyncio.sleep(0.2)  # past its patience
        await late.write(text("late"))
        assert await late.read() == text("late")


async def test_calls_without_a_request_do_not_fill_a_connection(no_patience: None) -> None:
    async with (
        serving(Echo(), bounds=BOUNDS) as (_, channel),
        calls_of(half_open, channel, BOUNDS.max_streams) as calls,
        asyncio.timeout(EVENT_S),
    ):
        assert await call(channel, "unary", text("served")) == ["served"]
        refused = BOUNDS.max_streams - NUM_SLOTS
        await eventually(lambda: sum(one.done() for one in calls) == refused)
        assert await codes_of(calls) == {EXHAUSTED: refused}
        assert await call(channel, "unary", text("again")) == ["again"]


async def test_places_of_late_calls_come_back(
    no_patience: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[CallSlots] = []

    def make_slots(**sizes: int) -> CallSlots:
        made.append(CallSlots(**sizes))
        return made[-1]

    monkeypatch.setattr(call_bounds, "CallSlots", make_slots)
    async with serving(Echo(), bounds=BOUNDS) as (_, channel):
        late, _lasting = made
        for _ in range(4):
            async with calls_of(half_open, channel, NUM_SLOTS) as calls:
                await eventually(lambda: late.num_reserved == NUM_SLOTS)
                assert await codes_of(calls) == {}
            await eventually(lambda: not late.num_reserved)


async def test_a_gateway_may_send_a_thousand_calls_at_once() -> None:
    held = asyncio.Event()

    async def hold(answer: str) -> str:
        await held.wait()
        return answer

    echo = Echo(hold)
    async with serving(echo) as (_, gateway), asyncio.timeout(EVENT_S):
        body = text("x" * 4096)
        calls = [asyncio.ensure_future(call(gateway, "unary", body)) for _ in range(1000)]
        await echo.a_start.wait()
        held.set()
        assert await asyncio.gather(*calls) == [["x" * 4096]] * 1000


async def test_watches_have_places_of_their_own() -> None:
    async with serving(Echo(), bounds=BOUNDS) as (server, channel), asyncio.timeout(EVENT_S):
        async with calls_of(watch, channel, NUM_SLOTS) as watches:
            assert [(await one.read()).status for one in watches] == [SERVING] * NUM_SLOTS
            async with calls_of(watch, channel, 6) as more:
                assert [await one.code() for one in more] == [EXHAUSTED] * 6
                assert "health watches" in await more[0].details()
            async with own_channel(server.address) as other:
                assert (await watch(other).read()).status == SERVING
            server.set_serving(NAME, serving=False)
            assert [(await one.read()).status for one in watches] == [NOT_SERVING] * NUM_SLOTS
            assert await call(channel, "unary", text("served")) == ["served"]
        while True:  # until the server has noticed that they are gone
            with contextlib.suppress(grpc.aio.AioRpcError):
                assert (await watch(channel).read()).status == NOT_SERVING
                break


async def test_reflection_streams_take_the_same_slots() -> None:
    def reflect(channel: grpc.aio.Channel) -> Any:
        return reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo()

    async with (
        serving(Echo(), bounds=BOUNDS, reflection=True) as (_, channel),
        calls_of(reflect, channel, 6) as calls,
    ):
        await eventually(lambda: sum(one.done() for one in calls) == 6 - NUM_SLOTS)
        assert await codes_of(calls) == {EXHAUSTED: 6 - NUM_SLOTS}


async def test_at_the_bound_of_streams_a_client_waits_until_one_ends() -> None:
    held, begun = asyncio.Event(), []

    async def hold(answer: str) -> str:
        begun.append(answer)
        await held.wait()
        return answer

    bounds = CallBounds(max_streams=2)
    async with serving(Echo(hold), bounds=bounds) as (_, channel), asyncio.timeout(EVENT_S):
        calls = [asyncio.ensure_future(call(channel, "unary", text(name))) for name in "abc"]
        await eventually(lambda: len(begun) == bounds.max_streams)
        await asyncio.sleep(0.2)
        assert len(begun) == bounds.max_streams
        assert not any(one.done() for one in calls)
        held.set()
        # The third may be refused, as gRPC counts a stream until the server has let go of it.
        answers = await asyncio.gather(*calls, return_exceptions=True)
        refused = [one for one in answers if isinstance(one, BaseException)]
        assert len(refused) <= 1
        for error in refused:
            assert isinstance(error, grpc.aio.AioRpcError)
            assert error.code() is grpc.StatusCode.UNAVAILABLE


async def test_what_does_not_keep_to_the_bound_of_streams_is_reset() -> None:
    async with serving(Echo(), bounds=BOUNDS) as (server, channel), asyncio.timeout(EVENT_S):
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        path = f"/{NAME}/unary".encode()
        calls = b"".join(
            frame(HEADERS, headers(path), flags=END_HEADERS, stream=number)
            for number in range(1, 2 * 100, 2)
        )
        writer.write(HTTP2_PREFACE + frame(SETTINGS) + calls)
        resets, data = 0, b""
        while resets < 100 - BOUNDS.max_streams:
            data += await reader.read(1 << 16)
            resets = data.count(b"\0\0\4\3\0")  # the head of RST_STREAM
        assert await call(channel, "unary", text("a")) == ["a"]
        writer.close()


async def test_connections_beyond_the_bound_are_closed() -> None:
    async with serving(Echo(), bounds=CallBounds(max_connections=3)) as (server, channel):
        assert await call(channel, "unary", text("a")) == ["a"]
        opened = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(3)]
        async with asyncio.timeout(EVENT_S):
            assert await opened[2][0].read() == b""
            for _, writer in opened:
                writer.close()
            async with own_channel(server.address) as other:
                while True:  # until gRPC has noticed that they are gone
                    with contextlib.suppress(grpc.aio.AioRpcError):
                        assert await call(other, "unary", text("b")) == ["b"]
                        break
        assert await call(channel, "unary", text("c")) == ["c"]


def test_a_server_leaves_files_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_bounds, "open_files_limit", lambda: 400)
    key = "grpc.max_allowed_incoming_connections"
    assert dict(CallBounds(max_connections=256).options())[key] == 100
    assert dict(CallBounds(max_connections=50).options())[key] == 50


def test_no_connection_takes_all_slots() -> None:
    slots = CallSlots(per_connection=6, total=10)
    assert [slots.reserve("a") for _ in range(7)] == [True] * 6 + [False]
    assert [slots.reserve("b") for _ in range(5)] == [True] * 4 + [False]
    assert [slots.reserve("c") for _ in range(5)] == [True] * call_bounds.FEW + [False]
    for _ in range(6):
        slots.release("a")
    assert slots.reserve("b")
    assert slots.num_reserved == 9

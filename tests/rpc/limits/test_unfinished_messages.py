"""What connections send of messages that never come whole is bounded, all of them together."""

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from functools import partial

import pytest

from signalbox_rpc.limits import call_bounds
from signalbox_rpc.limits.call_bounds import CallBounds
from signalbox_rpc.limits.unfinished_messages import UnfinishedMessages, WaitingCall, bytes_received
from tests.chaos.hostile import DATA, END_HEADERS, HEADERS, HTTP2_PREFACE, SETTINGS, frame, headers
from tests.rpc.echo import NAME, Echo, call, serving, text
from tests.waiting import EVENT_S, eventually

BOUND = 500
MANY_S = 3600.0
EXHAUSTED = b"\x01\x38"
"""The value "8" of grpc-status, as HPACK has it without Huffman's code."""


async def late(
    waiting: UnfinishedMessages, *connections: str
) -> tuple[list[WaitingCall], list[str]]:
    """Begins a call on each connection; returns them when they are late, and those that ended."""
    ended: list[str] = []
    calls = [waiting.begin(one, partial(ended.append, one)) for one in connections]
    await eventually(lambda: all(one.num_bytes_before is not None for one in calls))
    return calls, ended


async def test_calls_of_the_connection_with_the_most_bytes_end() -> None:
    received = {"a": 1000, "b": 1000, "c": 0}
    waiting = UnfinishedMessages(BOUND, lambda: dict(received))
    async with asyncio.timeout(EVENT_S):
        calls, ended = await late(waiting, "a", "b", "b", "c")
        received |= {"a": 1000 + BOUND // 2, "b": 1000 + BOUND}
        await eventually(lambda: len(ended) == 2)
        assert ended == ["b", "b"]
        received["c"] = 10 * BOUND
        await eventually(lambda: len(ended) == 3)
        assert ended == ["b", "b", "c"]
        for one in calls:
            waiting.finish(one)
    assert not waiting._waiting


async def test_what_came_before_a_call_was_late_does_not_count() -> None:
    received = {"a": 1 << 40}
    waiting = UnfinishedMessages(BOUND, lambda: dict(received))
    async with asyncio.timeout(EVENT_S):
        calls, ended = await late(waiting, "a")
        received["a"] += BOUND
        more, _ = await late(waiting, "a")
        assert not ended
        waiting.finish(calls[0])
        received["a"] += BOUND
        _, others = await late(waiting, "a")
        assert not others and not ended
        waiting.finish(more[0])


async def test_connections_are_not_looked_at_while_no_call_waits() -> None:
    looks: list[None] = []

    def look() -> dict[str, int]:
        looks.append(None)
        return {"a": 0}

    waiting = UnfinishedMessages(BOUND, look)
    async with asyncio.timeout(EVENT_S):
        calls, _ = await late(waiting, "a")
        waiting.finish(calls[0])
        await eventually(lambda: waiting._timer is None)
    assert looks and not waiting._waiting


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
async def test_the_kernel_counts_what_a_connection_has_received(host: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"no {host} here")
    with listener, socket.create_connection(listener.getsockname()[:2]) as client:
        accepted, _ = listener.accept()
        with accepted:
            port = client.getsockname()[1]
            peer = f"ipv6:[{host}]:{port}" if ":" in host else f"ipv4:{host}:{port}"
            client.sendall(b"x" * 1234)
            async with asyncio.timeout(EVENT_S):
                await eventually(lambda: bytes_received().get(peer) == 1234)
            assert accepted.fileno() >= 0, "the files are left open"


@contextlib.asynccontextmanager
async def unfinished(
    host: str, port: int
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Yields a connection with a call whose message is said to be of two gigabytes."""
    reader, writer = await asyncio.open_connection(host, port)
    fields = headers(f"/{NAME}/unary".encode())
    head = b"\0" + struct.pack(">I", 2_000_000_000)
    writer.write(HTTP2_PREFACE + frame(SETTINGS))
    writer.write(frame(HEADERS, fields, flags=END_HEADERS, stream=1))
    writer.write(frame(DATA, head, stream=1))
    try:
        yield reader, writer
    finally:
        writer.transport.abort()


async def until_refused(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes:
    """Sends more of the message, slowly, until an answer has come."""
    data = b""
    while b"grpc-status" not in data:
        writer.write(frame(DATA, b"x" * 50, stream=1))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(0.02):
                data += await reader.read(1 << 16)
    return data


async def test_a_message_without_end_is_refused_before_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(call_bounds, "MAX_UNFINISHED_BYTES", BOUND)
    monkeypatch.setattr(call_bounds, "PATIENCE_S", MANY_S)
    bounds = CallBounds(request_timeout_s=MANY_S)
    async with (
        serving(Echo(), bounds=bounds) as (server, channel),
        unfinished("127.0.0.1", server.port) as (reader, writer),
        asyncio.timeout(EVENT_S),
    ):
        answer = await until_refused(reader, writer)
        assert EXHAUSTED in answer.partition(b"grpc-status")[2]
        assert b"not whole" in answer
        assert await call(channel, "unary", text("served")) == ["served"]

"""Calls of one connection that send no request, last, or are reset as soon as they are made."""

import asyncio
import struct
from typing import Any

import grpc
from grpc_health.v1 import health_pb2

from signalbox_router.apis.inference.servicer import SERVICE_NAME
from tests.chaos.hostile import (
    CANCEL,
    DATA,
    EMPTY_MESSAGE,
    END_HEADERS,
    END_STREAM,
    HEADERS,
    HTTP2_PREFACE,
    RST_STREAM,
    SETTINGS,
    frame,
    headers,
)
from tests.hostile.case import Answer, Case, Target

GENERATE = f"/{SERVICE_NAME}/Generate"
WATCH = "/grpc.health.v1.Health/Watch"
NUM_STREAMS = 1000
"""Of an honest client: fewer than a connection may have."""
NUM_RAW = 20_000
BATCH = 500
UNBOUNDED = {
    "signalbox_rpc.limits.call_bounds.PART_OF_STREAMS": 1e-6,
    "signalbox_rpc.limits.call_bounds.MAX_SLOTS": 1 << 30,
}


async def half_open(target: Target) -> list[Answer]:
    """Calls that never send their request, on the connection of a healthy one."""
    stub: Any = target.channel.stream_stream(GENERATE)
    calls = [stub() for _ in range(NUM_STREAMS)]
    await asyncio.sleep(2)  # longer than they may wait without a place
    healthy = await target.grpc("/grpc.health.v1.Health/Check", b"")
    return [healthy, *[Answer((await one.code()).name, await one.details()) for one in calls]]


async def watches(target: Target) -> list[Answer]:
    """Health watches, which no key and no end bounds, on the connection of a healthy call."""
    watch: Any = target.channel.unary_stream(WATCH)
    calls = [watch(health_pb2.HealthCheckRequest().SerializeToString()) for _ in range(NUM_STREAMS)]

    async def first(call: Any) -> Answer:
        try:
            return Answer("OK" if await call.read() else "EMPTY")
        except grpc.aio.AioRpcError as error:
            return Answer(error.code().name, error.details() or "")

    answers = await asyncio.gather(*map(first, calls))
    healthy = await target.grpc("/grpc.health.v1.Health/Check", b"")
    for one in calls:
        one.cancel()
    return [healthy, *answers]


async def flood(target: Target, path: str, *, is_whole: bool, is_reset: bool) -> None:
    """Opens calls without heed of the server's settings, and reads what comes."""
    reader, writer = await asyncio.open_connection(target.host, target.grpc_port)
    writer.write(HTTP2_PREFACE + frame(SETTINGS))
    reading = asyncio.create_task(_discard(reader))
    fields = headers(path.encode())
    try:
        for start in range(0, NUM_RAW, BATCH):
            for number in range(2 * start + 1, 2 * (start + BATCH), 2):
                writer.write(frame(HEADERS, fields, flags=END_HEADERS, stream=number))
                if is_whole:
                    writer.write(frame(DATA, EMPTY_MESSAGE, flags=END_STREAM, stream=number))
                if is_reset:
                    writer.write(frame(RST_STREAM, struct.pack(">I", CANCEL), stream=number))
            await writer.drain()
        await asyncio.sleep(2)
    except OSError:
        pass  # being cut off is an answer
    finally:
        reading.cancel()
        writer.transport.abort()


async def _discard(reader: asyncio.StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


async def floods(target: Target) -> Answer:
    """Watches, half-open calls, and calls reset at once, each 20,000 times on a connection."""
    await asyncio.gather(
        flood(target, WATCH, is_whole=True, is_reset=False),
        flood(target, GENERATE, is_whole=False, is_reset=False),
        flood(target, GENERATE, is_whole=True, is_reset=True),
        flood(target, GENERATE, is_whole=False, is_reset=True),
    )
    return await target.grpc("/grpc.health.v1.Health/Check", b"")


CASES = (
    Case(
        name="a-thousand-calls-without-a-request",
        attack=half_open,
        codes=frozenset({"OK", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED"}),
        says="no request has come within",
        unbounded=UNBOUNDED,
    ),
    Case(
        name="a-thousand-health-watches",
        attack=watches,
        codes=frozenset({"OK", "RESOURCE_EXHAUSTED"}),
        says="health watches",
        unbounded=UNBOUNDED,
    ),
    # Its bound is an option, not a constant: with --max-grpc-streams=1000000 the router's memory
    # exceeds the bound by the third repeat.
    Case(name="streams-without-end", attack=floods, codes=frozenset({"OK"})),
)

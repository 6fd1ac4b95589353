"""Messages over gRPC that never come whole, sent as fast as the windows of HTTP/2 allow."""

import asyncio
import contextlib
import struct
from collections import defaultdict
from collections.abc import Iterator

from tests.chaos.hostile import (
    DATA,
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
from tests.hostile.cases.streams import GENERATE, NUM_STREAMS

PING, WINDOW_UPDATE, ACK = 6, 8, 1
FRAME_BYTES = 16 << 10
CONNECTION = 0
GIB = 1 << 30
SEND_S = 20.0
UNBOUNDED = {"signalbox_rpc.limits.call_bounds.MAX_UNFINISHED_BYTES": 1 << 40}


class Unfinished:
    """A connection that sends messages as far as it may."""

    def __init__(self, num_streams: int, *, declared: int, sent: int) -> None:
        """Makes calls with a message each: its length as declared, and how much of it is sent."""
        self._left = dict.fromkeys(range(1, 2 * num_streams, 2), sent)
        self._head = b"\0" + struct.pack(">I", declared)
        self._windows: defaultdict[int, int] = defaultdict(lambda: FRAME_BYTES)

    async def send(self, target: Target) -> Answer:
        """Returns when all is sent, all calls have ended, or `SEND_S` have passed."""
        reader, writer = await asyncio.open_connection(target.host, target.grpc_port)
        fields = headers(GENERATE.encode())
        writer.write(HTTP2_PREFACE + frame(SETTINGS))
        for stream in self._left:
            writer.write(frame(HEADERS, fields, flags=END_HEADERS, stream=stream))
            self._write(writer, stream, self._head)
        with contextlib.suppress(OSError, TimeoutError, asyncio.IncompleteReadError):
            async with asyncio.timeout(SEND_S):
                while any(self._left.values()):
                    self._fill(writer)
                    await writer.drain()
                    await self._read(reader, writer)
        writer.transport.abort()
        return await target.grpc("/grpc.health.v1.Health/Check", b"")

    def _sendable(self) -> Iterator[tuple[int, int]]:
        for stream, left in self._left.items():
            while (size := min(FRAME_BYTES, left, *self._of(stream))) > 0:
                yield stream, size
                left -= size

    def _of(self, stream: int) -> tuple[int, int]:
        return self._windows[CONNECTION], self._windows[stream]

    def _fill(self, writer: asyncio.StreamWriter) -> None:
        for stream, size in self._sendable():
            self._left[stream] -= size
            self._write(writer, stream, bytes(size))

    def _write(self, writer: asyncio.StreamWriter, stream: int, data: bytes) -> None:
        self._windows[CONNECTION] -= len(data)
        self._windows[stream] -= len(data)
        writer.write(frame(DATA, data, stream=stream))

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Reads one frame of the server."""
        head = await reader.readexactly(9)
        kind, flags, stream = head[3], head[4], int.from_bytes(head[5:], "big")
        payload = await reader.readexactly(int.from_bytes(head[:3], "big"))
        if kind == WINDOW_UPDATE:
            self._windows[stream] += int.from_bytes(payload, "big")
        elif kind == RST_STREAM or (kind == HEADERS and flags & END_STREAM):
            self._left.pop(stream, None)
        elif kind in (SETTINGS, PING) and not flags & ACK:
            writer.write(frame(kind, payload if kind == PING else b"", flags=ACK))


async def endless(target: Target) -> Answer:
    """One call, whose message is said to have 2 GiB and of which 1.5 GiB are sent."""
    return await Unfinished(1, declared=2 * GIB - 1, sent=3 * GIB // 2).send(target)


async def almost_whole(target: Target) -> Answer:
    """A thousand calls of a connection that each send 3.9 of 4 MB."""
    return await Unfinished(NUM_STREAMS, declared=4_000_000, sent=3_900_000).send(target)


CASES = tuple(
    Case(name=name, attack=attack, codes=frozenset({"OK"}), unbounded=UNBOUNDED)
    for name, attack in (
        ("a-message-of-two-gibibytes", endless),
        ("a-thousand-messages-that-are-almost-whole", almost_whole),
    )
)

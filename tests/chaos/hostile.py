"""Clients that speak no gRPC, or too much of it: what any port may get from a network."""

import asyncio
import contextlib
import random
import socket
import ssl
import struct
from collections.abc import AsyncIterator, Awaitable, Callable

Attack = Callable[[int, random.Random], Awaitable[None]]

HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, RST_STREAM, SETTINGS = 0, 1, 3, 4
END_STREAM, END_HEADERS = 1, 4
EMPTY_MESSAGE = bytes(5)
PATHS = (
    b"/grpc.health.v1.Health/Check",
    b"/grpc.health.v1.Health/Watch",
    b"/signalbox.inference.v1.InferenceService/Generate",
)
CANCEL = 8
NUM_RESETS = 200
READ_S = 0.2
"""How long an answer is waited for; some ports wait for more, and say nothing."""


async def http1(port: int, _: random.Random) -> None:
    await _say(port, b"GET /v1/nothing HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await _say(port, b"POST /signalbox HTTP/1.1\r\nContent-Length: 999999\r\n\r\n{")


async def tls_hello(port: int, _: random.Random) -> None:
    outgoing = ssl.MemoryBIO()
    context = ssl.create_default_context()
    hello = context.wrap_bio(ssl.MemoryBIO(), outgoing, server_hostname="example.org")
    with contextlib.suppress(ssl.SSLWantReadError):
        hello.do_handshake()
    await _say(port, outgoing.read())


async def random_bytes(port: int, rng: random.Random) -> None:
    await _say(port, rng.randbytes(rng.randrange(1, 1 << 14)))
    await _say(port, HTTP2_PREFACE + rng.randbytes(1 << 10))


async def torn_frame(port: int, _: random.Random) -> None:
    """The beginning of a frame, and then the end of the connection."""
    await _say(port, HTTP2_PREFACE + frame(SETTINGS) + frame(HEADERS, b"\x83" * 100)[:50])


async def rapid_connections(port: int, _: random.Random) -> None:
    """Connections that are reset as soon as they are made."""
    for _number in range(NUM_RESETS // 4):
        one = socket.create_connection(("127.0.0.1", port))
        one.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        one.close()
        await asyncio.sleep(0)


async def rapid_resets(port: int, _: random.Random) -> None:
    """Calls that are reset as soon as they are made (CVE-2023-44487)."""
    calls = b"".join(
        frame(HEADERS, headers(PATHS[number % len(PATHS)]), flags=END_HEADERS, stream=number)
        + frame(DATA, EMPTY_MESSAGE, flags=END_STREAM, stream=number)
        + frame(RST_STREAM, struct.pack(">I", CANCEL), stream=number)
        for number in range(1, 2 * NUM_RESETS, 2)
    )
    await _say(port, HTTP2_PREFACE + frame(SETTINGS) + calls)


ATTACKS: tuple[Attack, ...] = (
    http1,
    tls_hello,
    random_bytes,
    torn_frame,
    rapid_connections,
    rapid_resets,
)


@contextlib.asynccontextmanager
async def half_open(port: int) -> AsyncIterator[None]:
    """Peers that have connected, and said nothing or half of something."""
    writers = []
    for beginning in (b"", b"P", HTTP2_PREFACE, b"POST /v1/completions HTTP/1.1\r\nHost:"):
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(beginning)
        writers.append(writer)
    try:
        yield
    finally:
        for writer in writers:
            writer.transport.abort()


def frame(kind: int, payload: bytes = b"", *, flags: int = 0, stream: int = 0) -> bytes:
    """Returns one frame of HTTP/2 (RFC 9113, 4.1)."""
    length = struct.pack(">I", len(payload))[1:]
    return length + bytes([kind, flags]) + struct.pack(">I", stream) + payload


def headers(path: bytes) -> bytes:
    """Returns the HPACK block of a gRPC call, for a frame of HEADERS."""
    block = b"\x83\x86" + _literal(4, path) + _literal(1, b"x")  # POST, http
    return block + header(b"te", b"trailers") + header(b"content-type", b"application/grpc")


def _literal(name_index: int, value: bytes) -> bytes:
    """A header of HPACK that is not indexed, its name from the static table (RFC 7541, 6.2.2)."""
    return bytes([name_index, len(value)]) + value


def header(name: bytes, value: bytes) -> bytes:
    return bytes([0, len(name)]) + name + bytes([len(value)]) + value


async def _say(port: int, data: bytes) -> None:
    """Sends bytes, reads what comes, and closes."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        await writer.drain()
        async with asyncio.timeout(READ_S):
            while await reader.read(1 << 16):
                pass
    except (OSError, TimeoutError):
        pass  # being cut off is an answer
    finally:
        writer.transport.abort()

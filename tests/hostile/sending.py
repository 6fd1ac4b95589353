"""Sends what `inflated` makes: at once, a byte at a time, or half of it."""

import asyncio
import struct

from tests.chaos import hostile as http2
from tests.hostile.case import Answer, Target
from tests.hostile.inflated.inflated_fields import SLOW_BYTES, Inflated
from tests.waiting import EVENT_S

ANSWER_S = EVENT_S
NEVER = b"\0 until the connection is closed"
INITIAL_WINDOW_SIZE, WINDOW_UPDATE, WINDOW = 4, 8, 1 << 30
"""A setting and a frame of HTTP/2, and the bytes of an answer that they allow."""


async def send(target: Target, one: Inflated, num_bytes: int) -> tuple[Answer, int]:
    """Returns the answer and how many bytes were sent.

    Of what comes in pieces over gRPC the code is "SAID"; "CLOSED" if there is no answer, or "HUNG".
    """
    is_endless = one.endpoint.endswith("/Watch")
    if one.shape in ("slow", "unfinished"):
        data = one.make(SLOW_BYTES)
        pieces = _dripped_message(one, data) if one.is_grpc else _dripped_body(one, data)
        port, until = target.grpc_port, b"grpc-status"
        if not one.is_grpc:
            port, until = target.http_port, b"\r\n\r\n"
        if one.shape == "unfinished":
            pieces = pieces[: len(pieces) // 2]
        if one.shape == "unfinished" or is_endless:
            until = b""
        return await _drip(target.host, port, pieces, until=until), sum(map(len, pieces))
    data = one.make(num_bytes)
    if one.is_whole:
        return await _drip(target.host, target.http_port, [data], until=NEVER), len(data)
    if one.is_grpc:
        most = 1 if is_endless else None
        return await target.grpc(one.endpoint, data, max_messages=most), len(data)
    return await target.post(one.endpoint, data), len(data)


async def _drip(host: str, port: int, pieces: list[bytes], *, until: bytes) -> Answer:
    """Writes the pieces one by one, and reads until the answer has some bytes; then closes."""
    reader, writer = await asyncio.open_connection(host, port)  # asyncio sets TCP_NODELAY
    answer = b""
    try:
        for piece in pieces:
            writer.write(piece)
            await asyncio.sleep(0)
        await writer.drain()
        async with asyncio.timeout(ANSWER_S):
            while until and until not in answer and (more := await reader.read(1 << 16)):
                answer += more
    except TimeoutError:
        return Answer("HUNG", num_bytes=len(answer))
    except OSError:
        pass  # being cut off is an answer
    finally:
        writer.transport.abort()
    if answer.startswith(b"HTTP/1.1 "):
        return Answer(answer[9:12].decode(), num_bytes=len(answer))
    return Answer("SAID" if answer else "CLOSED", num_bytes=len(answer))


def _dripped_body(one: Inflated, data: bytes) -> list[bytes]:
    head = (
        f"POST {one.endpoint} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    )
    return [head.encode(), *(data[i : i + 1] for i in range(len(data)))]


def _dripped_message(one: Inflated, data: bytes) -> list[bytes]:
    message = b"\0" + struct.pack(">I", len(data)) + data
    frames = [http2.frame(http2.DATA, message[i : i + 1], stream=1) for i in range(len(message))]
    frames[-1] = http2.frame(http2.DATA, message[-1:], flags=http2.END_STREAM, stream=1)
    path = one.endpoint.encode()
    settings = struct.pack(">HI", INITIAL_WINDOW_SIZE, WINDOW)
    begin = http2.HTTP2_PREFACE + http2.frame(http2.SETTINGS, settings)
    begin += http2.frame(WINDOW_UPDATE, struct.pack(">I", WINDOW))
    headers = http2.headers(path)
    return [begin, http2.frame(http2.HEADERS, headers, flags=http2.END_HEADERS, stream=1), *frames]

"""Server-sent events over HTTP/1.1, by hand: the client shares two cores with the server it loads,
and a full HTTP library costs more of them for each token than some of the servers do.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

_MAX_LINE_BYTES = 16 << 20


class HttpError(RuntimeError):
    """The server has refused a request."""


async def is_healthy(host: str, port: int, *, path: str = "/health") -> bool:
    """Whether a GET of `path` is answered with 200."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
        return b" 200 " in await reader.readline()
    except OSError:
        return False
    finally:
        writer.close()


async def post(host: str, port: int, path: str, body: dict[str, Any]) -> Any:
    """Returns the JSON that a request is answered with. Raises HttpError."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        writer.write(_request(host, path, json.dumps(body).encode()))
        await _read_head(reader)
        return json.loads(await reader.read())
    finally:
        writer.close()


async def post_for_events(
    host: str, port: int, path: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yields the JSON of each event until "[DONE]" or the end. Raises HttpError."""
    reader, writer = await asyncio.open_connection(host, port, limit=_MAX_LINE_BYTES)
    try:
        writer.write(_request(host, path, json.dumps(body).encode()))
        await _read_head(reader)
        # Chunk sizes and blank lines stand on lines of their own: an event is what begins with
        # "data: ". Every server here sends an event as one line of one chunk.
        while line := await reader.readline():
            if line.startswith(b"data: [DONE]"):
                return
            if line.startswith(b"data: "):
                yield json.loads(line[6:])
            elif line.startswith(b"error: "):
                raise HttpError(line[7:].decode())
    finally:
        writer.close()


def _request(host: str, path: str, body: bytes) -> bytes:
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + body


async def _read_head(reader: asyncio.StreamReader) -> None:
    status = await reader.readline()
    while (await reader.readline()).strip():
        pass
    if b" 200 " not in status:
        rest = (await reader.read(2000)).decode(errors="replace")
        raise HttpError(f"{status.decode().strip()}: {rest}")

"""Reads server-sent events over HTTP/1.1 without a library.

The client shares its cores with the server that it measures, and a library takes more CPU for each
event.
"""

import asyncio
import json
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from signalbox_rpc.transport.listening_ports import join_address

_MAX_LINE_BYTES = 16 << 20
_MAX_ERROR_BYTES = 2000


class HttpStatusError(RuntimeError):
    """The server has refused a request."""

    def __init__(self, status: str, body: str = "") -> None:
        super().__init__(f"{status}: {body}" if body else status)
        self.status = status
        self.body = body


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAddress:
    """Address, headers and TLS of an HTTP server."""

    host: str
    port: int
    headers: Mapping[str, str] = field(default_factory=dict)
    tls: ssl.SSLContext | None = None
    server_name: str | None = None

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        name = (self.server_name or self.host) if self.tls else None
        return await asyncio.open_connection(
            self.host, self.port, limit=_MAX_LINE_BYTES, ssl=self.tls, server_hostname=name
        )

    def head(self, line: str, extra: str = "") -> bytes:
        headers = "".join(f"{name}: {value}\r\n" for name, value in self.headers.items())
        host = f"Host: {join_address(self.host, self.port)}\r\nConnection: close\r\n"
        return f"{line} HTTP/1.1\r\n{host}{headers}{extra}\r\n".encode()


async def get(endpoint: HttpAddress, path: str, *, as_json: bool = True) -> Any:
    """Returns the JSON answer of a GET. Raises HttpStatusError, OSError or ValueError."""
    return await _whole(endpoint, endpoint.head(f"GET {path}"), as_json=as_json)


async def post(endpoint: HttpAddress, path: str, body: dict[str, Any]) -> Any:
    """Returns the JSON answer of a POST. Raises HttpStatusError."""
    return await _whole(endpoint, _request(endpoint, path, body), as_json=True)


class HttpAnswer(NamedTuple):
    """Whatever a server answers to a request."""

    status: int
    headers: Mapping[str, str]
    """Headers by their names in lower case."""
    body: bytes


async def exchange(endpoint: HttpAddress, path: str, body: dict[str, Any]) -> HttpAnswer:
    """Returns the answer to a POST, whatever its status. Raises OSError, ValueError or
    IncompleteReadError if there is none, or it breaks off."""
    reader, writer = await endpoint.connect()
    try:
        writer.write(_request(endpoint, path, body))
        status, headers = await _head(reader)
        if not status:
            raise ConnectionError("the connection was closed without an answer")
        is_chunked = _is_chunked(headers)
        pieces = [piece async for piece in _pieces(reader, is_chunked=is_chunked)]
    finally:
        writer.close()
    content = b"".join(pieces)
    if (length := headers.get("content-length")) and int(length) != len(content):
        raise asyncio.IncompleteReadError(content, int(length))
    return HttpAnswer(int(status.partition(" ")[0]), headers, content)


async def post_for_events(
    endpoint: HttpAddress, path: str, body: dict[str, Any]
) -> AsyncIterator[dict[str, Any]]:
    """Yields the JSON of each event until "[DONE]" or the end. Raises HttpStatusError."""
    reader, writer = await endpoint.connect()
    try:
        writer.write(_request(endpoint, path, body))
        is_chunked = await _read_head(reader)
        async for line in _lines(reader, is_chunked=is_chunked):
            name, _, value = line.partition(b":")
            if name == b"data":
                if (content := value.strip()) == b"[DONE]":
                    return
                yield json.loads(content)
            elif name == b"error":
                raise HttpStatusError("error event", value.decode(errors="replace").strip())
    finally:
        writer.close()


async def _whole(endpoint: HttpAddress, request: bytes, *, as_json: bool) -> Any:
    reader, writer = await endpoint.connect()
    try:
        writer.write(request)
        is_chunked = await _read_head(reader)
        body = b"".join([piece async for piece in _pieces(reader, is_chunked=is_chunked)])
        return json.loads(body) if as_json else body
    finally:
        writer.close()


async def _lines(reader: asyncio.StreamReader, *, is_chunked: bool) -> AsyncIterator[bytes]:
    """Yields the lines of a body, across its chunks."""
    rest = b""
    async for piece in _pieces(reader, is_chunked=is_chunked):
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            yield line.rstrip(b"\r")


async def _pieces(reader: asyncio.StreamReader, *, is_chunked: bool) -> AsyncIterator[bytes]:
    if not is_chunked:
        while piece := await reader.read(1 << 16):
            yield piece
        return
    while size := int((await reader.readuntil(b"\r\n")).partition(b";")[0], 16):
        yield (await reader.readexactly(size + 2))[:-2]


def _request(endpoint: HttpAddress, path: str, body: dict[str, Any]) -> bytes:
    content = json.dumps(body).encode()
    extra = f"Content-Type: application/json\r\nContent-Length: {len(content)}\r\n"
    return endpoint.head(f"POST {path}", extra) + content


async def _read_head(reader: asyncio.StreamReader) -> bool:
    """Reads the head; returns whether the body comes in chunks. Raises HttpStatusError."""
    status, headers = await _head(reader)
    if not status.startswith("200"):
        rest = (await reader.read(_MAX_ERROR_BYTES)).decode(errors="replace")
        raise HttpStatusError(status or "no answer", rest)
    return _is_chunked(headers)


async def _head(reader: asyncio.StreamReader) -> tuple[str, dict[str, str]]:
    """Returns the status with its reason, and the headers by name in lower case."""
    status = (await reader.readline()).decode(errors="replace").partition(" ")[2].strip()
    headers = {}
    while header := (await reader.readline()).decode(errors="replace").strip():
        name, _, value = header.partition(":")
        headers[name.lower()] = value.strip()
    return status, headers


def _is_chunked(headers: Mapping[str, str]) -> bool:
    return headers.get("transfer-encoding", "").lower().endswith("chunked")

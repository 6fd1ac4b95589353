"""The parsers that uvicorn may take, each with an HTTP port's limits."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from signalbox_rpc.http import client_connection
from signalbox_rpc.http.server import HttpPort
from signalbox_rpc.transport.listening_ports import Endpoint
from tests.waiting import run_ready_tasks

PARSERS = ("h11", "httptools")


class WithH11(client_connection.LimitedParser, H11Protocol, asyncio.BufferedProtocol):  # type: ignore[misc]
    """With the parser that is always installed."""


def use_parser(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes ports take this parser; skips the test if it is not installed."""
    if name == "h11":
        monkeypatch.setattr(client_connection, "BoundedConnection", WithH11)
        return
    pytest.importorskip("httptools")
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class WithHttptools(
        client_connection.LimitedParser, HttpToolsProtocol, asyncio.BufferedProtocol
    ):  # type: ignore[misc]
        """With the faster parser."""

    monkeypatch.setattr(client_connection, "BoundedConnection", WithHttptools)


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the number of the body's bytes. Does not read a GET's body."""
    num_bytes, more = 0, scope["method"] != "GET"
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            return
        num_bytes += len(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b"%d bytes" % num_bytes})


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp = echo, endpoint: Endpoint | None = None, **options: Any
) -> AsyncIterator[HttpPort]:
    """A port of this machine's loopback interface, if nothing else is said."""
    port = HttpPort(app, endpoint or Endpoint(), **options)
    await port.start()
    try:
        yield port
    finally:
        await port.stop(flush_s=0)


@contextlib.asynccontextmanager
async def accepted(
    port: int,
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """A connection that a server of this loop has: bounds set now are of what is sent later."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        await run_ready_tasks()
        yield reader, writer
    finally:
        writer.transport.abort()

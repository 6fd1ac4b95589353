"""An address that cannot be called names the TLS flag that is missing, or that is too much."""

import asyncio
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from signalbox.client.connection import Connection, router_client
from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import Unreachable
from signalbox.client.terminal_answer import explained
from signalbox.client.tls_probe import listens, tls_hint
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from tests.ports import free_port
from tests.rpc.certificates import Authority


@pytest.mark.parametrize("has_tls", [False, True])
async def test_the_hint_is_of_what_listens(has_tls: bool, tmp_path: Path) -> None:
    tls = Authority(tmp_path).member("router") if has_tls else CLEAR
    server = Server(Endpoint(tls=tls))
    await server.start()
    try:
        hints = {
            uses_tls: await asyncio.to_thread(tls_hint, server.address, uses_tls=uses_tls)
            for uses_tls in (False, True)
        }
    finally:
        await server.drain(grace_s=0.0)
    if has_tls:
        assert all("--tls-ca names the authority" in hint for hint in hints.values())
    else:
        assert hints[False] == ""
        assert "leave --tls-ca out" in hints[True]


def test_where_nothing_listens_tls_explains_nothing() -> None:
    assert tls_hint(f"127.0.0.1:{free_port()}", uses_tls=True) == ""


async def test_commands_without_tls_are_told_of_it(tmp_path: Path) -> None:
    server = Server(Endpoint(tls=Authority(tmp_path).member("router")))
    await server.start()
    try:
        async with SchedulerClient(server.address) as scheduler:
            with pytest.raises(Unreachable, match="speaks TLS: --tls-ca"):
                await scheduler.stats()
        async with router_client(server.address) as client:
            with (
                pytest.raises(RuntimeError, match="speaks TLS: --tls-ca"),
                explained(server.address),
            ):
                await client.model()
    finally:
        await server.drain(grace_s=0.0)


async def test_commands_with_tls_are_told_of_a_port_without_it(tmp_path: Path) -> None:
    how = Connection(tls=TlsConfig(ca=Authority(tmp_path).member("router").ca))
    server = Server(Endpoint())
    await server.start()
    try:
        async with router_client(server.address, how) as client:
            with (
                pytest.raises(RuntimeError, match="has no TLS: leave --tls-ca out"),
                explained(server.address),
            ):
                await client.model()
    finally:
        await server.drain(grace_s=0.0)


async def test_another_service_is_called_no_router() -> None:
    server = Server(Endpoint())
    await server.start()
    try:
        async with router_client(server.address) as client:
            with pytest.raises(RuntimeError, match="no router of"), explained(server.address):
                await client.model()
    finally:
        await server.drain(grace_s=0.0)


@contextmanager
def listening(answer: bytes) -> Iterator[str]:
    """Yields the address of a port that answers each connection with some bytes, and closes it."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            self.request.recv(1024)
            self.request.sendall(answer)

    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "not its HTTP port"),
        (b"", "may be starting, busy, or"),
    ],
    ids=["HTTP", "a router that ends"],
)
async def test_a_port_that_answers_no_call_is_not_called_silent(
    answer: bytes, expected: str
) -> None:
    with listening(answer) as address:
        async with router_client(address) as client:
            with pytest.raises(RuntimeError, match=expected), explained(address):
                await client.model()
    assert not listens(address)

"""How many connections an HTTP port holds, and what happens to the next one."""

import asyncio
import contextlib
import errno
import gc
import hashlib
import logging
import os
import random
import resource
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from starlette.types import Receive, Scope, Send

from signalbox_rpc.http import acceptor, port_limits
from signalbox_rpc.http.connection_slots import ConnectionSlots, NoFreeSlot
from signalbox_rpc.http.errors import HttpError
from signalbox_rpc.http.port_limits import HttpLimits
from signalbox_rpc.limits import open_files
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.tls import TlsConfig
from tests.rpc.certificates import Authority
from tests.rpc.http.http_parsers import PARSERS, accepted, serving, use_parser
from tests.rpc.http.test_client_connection import error_of, say, status_of
from tests.waiting import EVENT_S, eventually

SLOW_BODY = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\na"
GET = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
STARTS = [b"", b"GET / HT", SLOW_BODY]


@contextlib.asynccontextmanager
async def connections(
    port: int, number: int, start: bytes, context: ssl.SSLContext | None = None, more: bytes = b""
) -> AsyncIterator[list[asyncio.StreamReader]]:
    """So many connections that have sent this, and `more` in other records of TLS."""
    made = []
    try:
        for _ in range(number):
            made.append(await asyncio.open_connection("127.0.0.1", port, ssl=context))
            made[-1][1].write(start)
            made[-1][1].write(more)
        yield [reader for reader, _ in made]
    finally:
        for _, writer in made:
            writer.transport.abort()


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("start", STARTS, ids=["nothing", "head", "body"])
async def test_clients_that_send_slowly_make_room_for_new_ones(
    parser: str, start: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_parser(parser, monkeypatch)
    async with serving(limits=HttpLimits(max_connections=20)) as port:
        async with connections(port.port, 30, start) as readers:
            await eventually(lambda: port.num_connections == 20)
            async with asyncio.timeout(EVENT_S):
                told = await asyncio.gather(*[reader.read() for reader in readers[:10]])
            assert {answer[9:12] for answer in told} == {b"503" if start else b""}
            for _ in range(5):
                assert status_of(await say(port.port, GET)) == 200
            assert port.num_connections <= 20
        await eventually(lambda: port.num_connections == 0)


@pytest.mark.parametrize("parser", PARSERS)
async def test_a_client_that_was_refused_and_lingers_makes_room(
    parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_parser(parser, monkeypatch)
    async with serving(limits=HttpLimits(max_connections=1)) as port:
        async with accepted(port.port) as (late, writer):
            monkeypatch.setattr(port_limits, "HEAD_S", 0.05)
            writer.write(b"GET / HT")
            async with asyncio.timeout(EVENT_S):
                assert status_of(await late.readline()) == 408
            monkeypatch.setattr(port_limits, "HEAD_S", EVENT_S)
            assert status_of(await say(port.port, GET)) == 200
        await eventually(lambda: port.num_connections == 0)


async def test_a_connection_that_is_answered_is_not_closed_for_others() -> None:
    done, num_begun = asyncio.Event(), 0

    async def wait(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_begun
        if scope["path"] == "/wait":
            num_begun += 1
            await done.wait()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"waited"})

    waiting = GET.replace(b"GET /", b"GET /wait")
    async with serving(wait, limits=HttpLimits(max_connections=3)) as port:
        asked = [asyncio.create_task(say(port.port, waiting)) for _ in range(3)]
        await eventually(lambda: num_begun == 3)
        answer = await say(port.port, GET)
        assert (status_of(answer), b"retry-after: 1" in answer) == (503, True)
        assert error_of(answer) == "3 connections are open, the most, and all are answered"
        done.set()
        for answer in await asyncio.gather(*asked):
            assert b"waited" in answer
        await eventually(lambda: port.num_connections == 0)
        assert status_of(await say(port.port, GET)) == 200


async def test_an_answer_that_is_not_read_yet_is_not_cut_for_others() -> None:
    body = b"a" * (8 << 20)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async with serving(large, limits=HttpLimits(max_connections=1)) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1024)
        writer.write(GET)
        head = await reader.readuntil(b"\r\n\r\n")
        assert status_of(await say(port.port, GET)) == 503
        async with asyncio.timeout(EVENT_S):
            assert len(await reader.read()) == len(body)
        assert b"200 OK" in head
        writer.close()


async def test_a_flood_of_connections_leaves_none_behind() -> None:
    async with serving(limits=HttpLimits(max_connections=1)) as port:
        made = [asyncio.open_connection("127.0.0.1", port.port) for _ in range(100)]
        writers = [writer for _, writer in await asyncio.gather(*made)]
        assert status_of(await say(port.port, GET)) == 200
        assert port.num_connections <= 1
        gc.collect()  # a socket that nothing closes warns, and the warning fails the test
        for writer in writers:
            writer.transport.abort()


async def test_a_large_body_comes_whole_over_tls(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    context = ssl.create_default_context(cafile=authority.file)
    body = random.Random(0).randbytes(8 << 20)
    head = b"POST / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: %d\r\n\r\n"
    start = head % len(body)
    tls = TlsConfig(cert=cert, key=key)
    async with (
        serving(digest_of, Endpoint(tls=tls)) as port,
        connections(port.port, 1, start, context, body) as (reader,),
        asyncio.timeout(EVENT_S),
    ):
        assert hashlib.sha256(body).digest() in await reader.read()


async def test_the_next_connection_sees_a_renewed_certificate_and_an_open_one_goes_on(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1", file_name="server")
    context = ssl.create_default_context(cafile=authority.file)
    get = GET.replace(b"close", b"keep-alive")
    async with (
        serving(endpoint=Endpoint(tls=TlsConfig(cert=cert, key=key))) as port,
        asyncio.timeout(EVENT_S),
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, ssl=context)
        at, shown = ("127.0.0.1", port.port), []
        for _ in range(2):
            shown.append(await asyncio.to_thread(ssl.get_server_certificate, at))
            authority.issue("127.0.0.1", file_name="server")
        Path(key).write_text("half a key")  # noqa: ASYNC240 (a temporary file)
        shown += await asyncio.gather(
            *(asyncio.to_thread(ssl.get_server_certificate, at) for _ in range(3))
        )
        assert len(set(shown)) == 2
        assert shown[1] == shown[-1]
        writer.write(get)
        assert b"200 OK" in await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def digest_of(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers with the digest of the body."""
    digest, more = hashlib.sha256(), True
    while more:
        message = await receive()
        digest.update(message["body"])
        more = message["more_body"]
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": digest.digest()})


async def test_one_address_has_no_more_connections_than_it_may() -> None:
    limits = HttpLimits(max_connections=20, max_connections_per_address=3)
    async with serving(limits=limits) as port:
        async with connections(port.port, 3, b""):
            await eventually(lambda: port.num_connections == 3)
            answer = await say(port.port, GET)
            assert status_of(answer) == 503
            assert error_of(answer) == "127.0.0.1 has 3 connections, the most for one"
        await eventually(lambda: port.num_connections == 0)
        assert status_of(await say(port.port, GET)) == 200


@dataclass(frozen=True)
class Holder:
    vacates: bool

    def vacate(self, _error: HttpError) -> bool:
        return self.vacates


def test_slots_are_counted_by_address_and_given_back_once() -> None:
    slots = ConnectionSlots(most=3, most_per_address=2)
    first, second = (slots.enter("a") for _ in range(2))
    first.holder = second.holder = Holder(True)
    with pytest.raises(NoFreeSlot, match="a has 2"):
        slots.enter("a")
    third = slots.enter("b")
    third.holder = Holder(False)
    slots.answer(first)
    slots.wait(first)  # behind the second and the third
    fourth = slots.enter("c")
    assert len(slots) == 3
    for slot in (second, second, first, third, fourth):
        slots.leave(slot)
    assert len(slots) == 0
    assert [slots.enter("a").address for _ in range(2)] == ["a", "a"]


async def test_handshakes_that_do_not_come_have_slots_and_give_them_up(
    tmp_path: Path,
) -> None:
    authority = Authority(tmp_path)
    cert, key = authority.issue("127.0.0.1")
    context = ssl.create_default_context(cafile=authority.file)
    config = TlsConfig(cert=cert, key=key)
    async with serving(
        endpoint=Endpoint(tls=config), limits=HttpLimits(max_connections=10)
    ) as port:
        async with connections(port.port, 15, b"\x16\x03\x01"):
            await eventually(lambda: port.num_connections == 10)
            async with connections(port.port, 1, GET, context) as (reader,):
                async with asyncio.timeout(EVENT_S):
                    assert b"200 OK" in await reader.read()
            async with connections(port.port, 15, SLOW_BODY, context) as slow:
                async with asyncio.timeout(EVENT_S):
                    await slow[0].read()
                assert port.num_connections <= 10
        await eventually(lambda: port.num_connections == 0)


@contextlib.contextmanager
def most_files(number: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (number, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def no_file_left() -> Iterator[None]:
    held = [os.dup(0)]
    with most_files(held[0] + 50):
        with contextlib.suppress(OSError):
            while True:
                held.append(os.dup(0))
        try:
            yield
        finally:
            for file in held:
                os.close(file)


async def test_where_no_file_can_be_opened_the_log_says_so_a_few_times_a_second(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = asyncio.get_running_loop()
    async with serving() as port:
        assert status_of(await say(port.port, GET)) == 200
        with socket.socket() as client:
            client.setblocking(False)
            with caplog.at_level(logging.WARNING), no_file_left():
                began = loop.time()
                await loop.sock_connect(client, ("127.0.0.1", port.port))
                await loop.sock_sendall(client, GET)
                await asyncio.sleep(1.0)
                most = 2 + (loop.time() - began) / acceptor.PAUSE_S
            async with asyncio.timeout(EVENT_S):  # it is served when there are files again
                assert status_of(await loop.sock_recv(client, 1 << 16)) == 200
    lines = [record for record in caplog.records if "cannot accept" in record.getMessage()]
    assert 1 <= len(lines) <= most
    assert "Too many open files" in lines[0].getMessage()
    assert not any(record.exc_info for record in caplog.records)


def test_the_limit_of_files_is_raised_as_far_as_it_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with most_files(256):
        assert port_limits.NORMAL.slots() == 128
        open_files.raise_open_files_limit()
        raised = resource.getrlimit(resource.RLIMIT_NOFILE)
        assert raised == (min(hard, open_files.WANTED_FILES), hard)
        open_files.raise_open_files_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == raised
    assert resource.getrlimit(resource.RLIMIT_NOFILE) == (soft, hard)


def test_a_limit_of_files_that_cannot_be_raised_is_said(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EPERM, "no")

    with most_files(256):
        monkeypatch.setattr(resource, "setrlimit", refuse)
        open_files.raise_open_files_limit()
        monkeypatch.undo()
    assert "stays at 256" in caplog.text

"""What a client may send over one HTTP connection, with each parser: bytes, headers, time."""

import asyncio
import json
from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from signalbox_rpc.http import parsing_share, port_limits
from signalbox_rpc.http.port_limits import HttpLimits
from signalbox_rpc.http.server import HttpPort
from tests.rpc.http.http_parsers import PARSERS, accepted, echo, serving, use_parser
from tests.waiting import EVENT_S, eventually

pytestmark = pytest.mark.slow

HOST = b"Host: localhost\r\n"
HEAD = b"POST / HTTP/1.1\r\n" + HOST
CHUNKED = b"Transfer-Encoding: chunked\r\n"


@pytest.fixture(params=PARSERS, autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    use_parser(request.param, monkeypatch)
    return str(request.param)


@pytest.fixture
async def port(parser: str) -> AsyncIterator[HttpPort]:
    async with serving() as port:
        yield port


async def say(port: int, *parts: bytes, pause_s: float = 0.0) -> bytes:
    """Sends the parts, each after a pause, and returns all that comes until the connection ends."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)

    async def send() -> None:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(pause_s)

    sending = asyncio.create_task(send())
    try:
        async with asyncio.timeout(EVENT_S):
            return await reader.read()
    finally:
        sending.cancel()
        await asyncio.gather(sending, return_exceptions=True)
        writer.transport.abort()


def status_of(answer: bytes) -> int:
    return int(answer[9:12])


async def test_each_answer_has_the_date_of_its_second(
    port: HttpPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    for second in (0, 86_400):
        monkeypatch.setattr(
            "signalbox_rpc.http.server.time.time", lambda second=second: second + 0.5
        )
        answer = await say(port.port, b"GET / HTTP/1.1\r\n" + HOST + b"Connection: close\r\n\r\n")
        head = answer.lower()
        assert head.count(b"\r\ndate: ") == 1
        assert (
            b"date: %s 00:00:00 gmt" % (b"thu, 01 jan 1970", b"fri, 02 jan 1970")[second > 0]
            in head
        )


def error_of(answer: bytes) -> str:
    """Returns the message of an error in OpenAI's shape."""
    error = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    return str(error["message"])


async def exchange(port: int, request: bytes) -> tuple[int, bytes]:
    """Sends one request and returns the status and the body; the connection ends with it."""
    answer = await say(port, request.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    return status_of(answer), answer.partition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("pieces", [1, 8])
async def test_a_head_of_too_many_bytes_is_refused(pieces: int) -> None:
    many = b"".join(b"a%d: %s\r\n" % (i, b"x" * 1000) for i in range(64))
    size = len(many) // pieces + 1
    async with serving() as port:
        parts = [many[i : i + size] for i in range(0, len(many), size)]
        answer = await say(port.port, HEAD, *parts, pause_s=0.01)
    assert status_of(answer) == 431
    assert "32768 bytes" in error_of(answer)
    assert b"connection: close" in answer


async def test_a_head_of_as_many_bytes_as_may_be_is_read(port: HttpPort) -> None:
    header = b"cookie: " + b"x" * (port_limits.MAX_HEAD_BYTES - 200) + b"\r\n"
    assert (await exchange(port.port, HEAD + header + b"Content-Length: 0\r\n\r\n"))[0] == 200


async def test_an_endless_line_is_refused_when_it_is_as_long_as_a_head_may_be(
    port: HttpPort,
) -> None:
    answer = await say(port.port, b"GET /", *[b"a" * 4096] * 64, pause_s=0.001)
    assert status_of(answer) == 431


async def test_as_many_headers_as_may_be_are_read_and_one_more_is_not(
    port: HttpPort, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send(num_headers: int) -> int:
        more = b"".join(b"a%d:\r\n" % i for i in range(num_headers - 3))
        request = HEAD + more + b"Content-Length: 0\r\n\r\n"
        return (await exchange(port.port, request))[0]  # which adds a header

    assert await send(port_limits.MAX_HEADERS) == 200
    assert await send(port_limits.MAX_HEADERS + 1) == 431
    monkeypatch.setattr(port_limits, "MAX_HEADERS", 1 << 30)
    assert await send(257) == 200


async def test_a_body_that_comes_too_slowly_is_cut_and_the_client_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_limits, "BODY_GRACE_S", 0.3)
    slowly = [HEAD + b"Content-Length: 1000\r\n\r\n", *[b"a"] * 40]
    async with serving() as port:
        answer = await say(port.port, *slowly, pause_s=0.05)
        assert (status_of(answer), error_of(answer)) == (408, "the request's body came too slowly")
    async with serving(limits=HttpLimits(min_body_rate=0)) as port:
        sent = asyncio.create_task(say(port.port, *slowly, pause_s=0.05))
        await asyncio.sleep(1.0)
        assert not sent.done()  # without the limit it is waited for
        sent.cancel()


async def test_bytes_that_came_early_gain_no_time_to_hold_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_limits, "BODY_GRACE_S", 0.3)
    head = HEAD + b"Content-Length: 1000000\r\n\r\n"  # 2,000 s at the least rate
    async with serving() as port:
        assert status_of(await say(port.port, head, b"a" * 999_999)) == 408


async def test_of_too_many_unfinished_bytes_those_that_come_slowest_are_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(port_limits, "MAX_UNFINISHED_BYTES", 1 << 20)
    quarter = b"a" * (1 << 18)
    head = HEAD + b"Content-Length: %d\r\nConnection: close\r\n\r\n" % (3 << 18)
    async with serving() as port:
        slow = asyncio.create_task(say(port.port, head, quarter))
        await asyncio.sleep(2.0)
        for _ in range(3):  # one after the other they fit
            answer = await say(port.port, head, *[quarter] * 3)
            assert b"%d bytes" % (3 << 18) in answer
        assert not slow.done()
        others = [asyncio.create_task(say(port.port, head, quarter, quarter)) for _ in range(2)]
        assert status_of(answer := await slow) == 503
        assert error_of(answer) == "the server holds too many bytes of unfinished bodies"
        assert b"retry-after: 1" in answer
        assert "body given up: 2" in caplog.text and not all(one.done() for one in others)
        for one in others:
            one.cancel()


async def test_an_honest_upload_may_take_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_limits, "BODY_GRACE_S", 8.0)
    part = b"a" * 100
    request = HEAD + b"Content-Length: 2000\r\nConnection: close\r\n\r\n"
    async with serving(limits=HttpLimits(min_body_rate=25)) as port:  # 100 bytes in 4 s
        answer = await say(port.port, request, *[part] * 20, pause_s=0.45)
    assert b"2000 bytes" in answer


async def test_time_in_which_the_application_does_not_read_is_not_the_clients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(port_limits, "BODY_GRACE_S", 0.3)

    async def busy(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.sleep(1.0)
        while (await receive())["more_body"]:
            pass
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"read"})

    body = b"a" * (256 << 10)
    head = HEAD + b"Content-Length: %d\r\n\r\n" % len(body)
    async with serving(busy) as port:
        assert await exchange(port.port, head + body) == (200, b"4\r\nread\r\n0\r\n\r\n")


async def test_a_slow_body_that_nothing_reads_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async def hurried(scope: Scope, receive: Receive, send: Send) -> None:
        monkeypatch.setattr(port_limits, "HEAD_S", 0.3)
        await echo(scope, receive, send)

    head = b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: 1000\r\n\r\n"
    async with serving(hurried) as port:
        answer = await say(port.port, head, *[b"a"] * 200, pause_s=0.05)
        assert answer.endswith(b"0 bytes\r\n0\r\n\r\n")


async def test_what_is_left_of_a_body_after_its_answer_is_no_head(port: HttpPort) -> None:
    rest = 4 * port_limits.MAX_HEAD_BYTES
    head = b"GET / HTTP/1.1\r\n" + HOST + b"Content-Length: %d\r\n\r\n" % rest
    last = b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    answer = await say(port.port, head, *[b"a" * 4096] * (rest // 4096), last, pause_s=0.002)
    assert answer.count(b"200 OK") == 2


@pytest.mark.parametrize(
    "lines",
    [
        b"Content-Length: 5\r\n" + CHUNKED,
        CHUNKED + b"Content-Length: 5\r\n",
        b"content-length: 0\r\ntransfer-encoding: Chunked\r\n",
    ],
)
async def test_two_lengths_of_one_body_are_refused_and_the_connection_is_closed(
    port: HttpPort, lines: bytes
) -> None:
    smuggled = b"GET /smuggled HTTP/1.1\r\n" + HOST + b"\r\n"
    answer = await say(port.port, HEAD + lines + b"\r\n0\r\n\r\n" + smuggled)
    assert status_of(answer) == 400
    assert b"200 OK" not in answer


@pytest.mark.parametrize("version", [b"2.0", b"3.7", b"1.9", b"0.9", b"x"])
async def test_an_unknown_version_is_refused_and_the_connection_is_closed(
    port: HttpPort, version: bytes
) -> None:
    request = b"GET / HTTP/" + version + b"\r\n" + HOST + b"\r\n"
    answer = await say(port.port, request + b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
    assert status_of(answer) in (400, 505)
    assert b"200 OK" not in answer


async def test_http_1_0_is_served_and_needs_no_host(port: HttpPort) -> None:
    assert b"200 OK" in await say(port.port, b"GET / HTTP/1.0\r\n\r\n")
    answer = await say(port.port, b"POST / HTTP/1.0\r\n" + CHUNKED + b"\r\n0\r\n\r\n")
    assert status_of(answer) == 400


@pytest.mark.parametrize("hosts", [b"", b"Host: localhost\r\nHost: localhost\r\n"])
async def test_a_request_has_one_host(port: HttpPort, hosts: bytes) -> None:
    assert status_of(await say(port.port, b"GET / HTTP/1.1\r\n" + hosts + b"\r\n")) == 400


async def test_a_body_that_is_broken_midway_ends_the_connection_alone(port: HttpPort) -> None:
    begun = HEAD + CHUNKED + b"\r\n3\r\nabc\r\n"
    answer = await say(port.port, begun, b"no number\r\n", pause_s=0.05)
    assert status_of(answer) == 400
    assert (await exchange(port.port, HEAD + b"Content-Length: 1\r\n\r\na"))[0] == 200


async def test_requests_that_are_sent_ahead_are_answered_in_order() -> None:
    posts = [HEAD + b"Content-Length: %d\r\n\r\n" % i + b"a" * i for i in range(20)]
    last = b"GET / HTTP/1.1\r\nConnection: close\r\n" + HOST + b"\r\n"
    async with serving() as port:
        answer = await say(port.port, b"".join(posts) + last)
    places = [answer.index(b"\r\n%d bytes" % i) for i in range(1, 20)]
    assert places == sorted(places)
    assert answer.count(b"200 OK") == 21


async def test_requests_that_are_sent_ahead_by_thousands_are_not_kept(parser: str) -> None:
    held = asyncio.Event()
    num_begun = 0

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal num_begun
        num_begun += 1
        await held.wait()
        await send({"type": "http.response.start", "status": 204, "headers": []})
        await send({"type": "http.response.body"})

    one = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    async with serving(slow) as port:
        sending = asyncio.create_task(say(port.port, one * 10_000))
        await eventually(lambda: num_begun)
        held.set()
        if parser == "httptools":
            answer = await sending
            assert answer.count(b"HTTP/1.1 204") == num_begun == port_limits.MAX_PIPELINED
        else:  # h11 parses a request when the one before it has been answered
            sending.cancel()


async def test_a_client_that_reads_no_answer_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(port_limits, "UNREAD_S", 0.3)

    async def large(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"a" * (32 << 20)})

    async with serving(large) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port.port, limit=1024)
        writer.write(b"GET / HTTP/1.1\r\n" + HOST + b"\r\n")
        await reader.readexactly(100)
        await eventually(lambda: not port.num_connections)
        writer.transport.abort()


@pytest.fixture
def pause_s(monkeypatch: pytest.MonkeyPatch) -> float:
    """Seconds of the pause that follows each slice; those of this process are as dear as can be."""
    pause_s = 2e-3
    monkeypatch.setattr(parsing_share, "DEAR_S", -1.0)
    monkeypatch.setattr(parsing_share, "MAX_COUNTED_S", 1e-9)
    monkeypatch.setattr(parsing_share, "PAUSES", pause_s / 1e-9)
    return pause_s


@pytest.mark.usefixtures("pause_s")
async def test_an_address_with_many_connections_delays_itself() -> None:
    answered: list[str] = []

    async def noting(scope: Scope, receive: Receive, send: Send) -> None:
        await echo(scope, receive, send)
        answered.append(scope["client"][0])

    def request(num_bytes: int) -> bytes:
        head = HEAD + b"Connection: close\r\nContent-Length: %d\r\n\r\n" % num_bytes
        return head + b"a" * num_bytes

    async with serving(noting) as port:
        address = ("127.0.0.1", port.port)
        reader, writer = await asyncio.open_connection(*address)
        writer.write(request(40 << 10))
        others = []
        for _ in range(20):
            others.append(await asyncio.open_connection(*address, local_addr=("127.0.0.2", 0)))
            others[-1][1].write(request(33 << 10))
        async with asyncio.timeout(EVENT_S):
            assert status_of(await reader.read()) == 200
        assert answered == ["127.0.0.1"]
        for _, other in [*others[1:], (reader, writer)]:
            other.transport.abort()
        async with asyncio.timeout(EVENT_S):  # the pauses of those that have left are left out
            assert status_of(await others[0][0].read()) == 200
        others[0][1].transport.abort()
        assert set(answered[1:]) == {"127.0.0.2"}


@pytest.mark.usefixtures("pause_s")
async def test_a_request_that_a_pause_delays_keeps_its_connection() -> None:
    header = HOST + b"cookie: " + b"x" * 9000 + b"\r\n"
    requests = b"GET / HTTP/1.1\r\n%b\r\nGET / HTTP/1.1\r\nConnection: close\r\n%b\r\n"
    async with serving(timeout_keep_alive=0) as port:
        answer = await say(port.port, requests % (header, header))
    assert answer.count(b"200 OK") == 2


async def test_a_pause_of_parsing_is_not_the_clients_time(
    pause_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    header = b"cookie: " + b"x" * (20 << 10) + b"\r\n"
    async with serving() as port, accepted(port.port) as (reader, writer):
        monkeypatch.setattr(port_limits, "HEAD_S", pause_s / 2)
        writer.write(HEAD + header + b"Connection: close\r\nContent-Length: 0\r\n\r\n")
        async with asyncio.timeout(EVENT_S):
            assert status_of(await reader.read()) == 200

"""What RFC 9110 and 9112 ask of each answer, with each parser; and the request's id in it."""

from collections.abc import AsyncIterator

import pytest
from starlette.types import Receive, Scope, Send

from signalbox_rpc.http import port_limits
from signalbox_rpc.http.port_limits import HttpLimits
from signalbox_rpc.http.server import HttpPort
from tests.rpc.http.http_parsers import PARSERS, accepted, serving, use_parser
from tests.rpc.http.test_client_connection import say, status_of

HOST = b"Host: localhost\r\n"
CLOSE = HOST + b"Connection: close\r\n\r\n"


@pytest.fixture(params=PARSERS, autouse=True)
async def port(
    request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[HttpPort]:
    use_parser(request.param, monkeypatch)
    async with serving(show) as port:
        yield port


async def show(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers a GET with its path, in parts for /stream; reads the body of a POST."""
    if scope["path"] == "/bug":
        raise ValueError
    while scope["method"] == "POST" and (await receive())["more_body"]:
        pass
    body = scope["path"].encode()
    is_streamed = body == b"/stream"
    headers = [] if is_streamed else [(b"content-length", b"%d" % len(body))]
    status = 200 if scope["method"] == "GET" else 405
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for part in (body[:3], body[3:]) if is_streamed else ():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if is_streamed else body})


def head_and_body(answer: bytes) -> tuple[bytes, bytes]:
    head, _, body = answer.partition(b"\r\n\r\n")
    return head.lower() + b"\r\n", body


@pytest.mark.parametrize("more", [b"", b"Connection: keep-alive\r\n", b"Expect: 100-continue\r\n"])
async def test_http_1_0_reads_a_stream_until_the_connection_ends(
    port: HttpPort, more: bytes
) -> None:
    head, body = head_and_body(await say(port.port, b"GET /stream HTTP/1.0\r\n" + more + b"\r\n"))
    assert (status_of(head), body) == (200, b"/stream")
    assert b"transfer-encoding" not in head and b"connection: close\r\n" in head
    head, body = head_and_body(await say(port.port, b"GET /whole HTTP/1.0\r\n" + more + b"\r\n"))
    assert (b"content-length: 6\r\n" in head, body) == (True, b"/whole")
    chunked = await say(port.port, b"GET /stream HTTP/1.1\r\n" + CLOSE)
    assert chunked.endswith(b"3\r\n/st\r\n4\r\nream\r\n0\r\n\r\n")


@pytest.mark.parametrize("path", [b"/whole", b"/stream"])
async def test_head_has_the_headers_of_get_and_no_body(port: HttpPort, path: bytes) -> None:
    got, asked = [
        head_and_body(await say(port.port, b"%s %s HTTP/1.1\r\n" % (method, path) + CLOSE))
        for method in (b"GET", b"HEAD")
    ]
    assert got[1] and not asked[1]
    assert status_of(asked[0]) == 200
    assert (b"content-length: 6" in asked[0]) is (path == b"/whole")


@pytest.mark.parametrize("protocol", [b"websocket", b"h2c"])
async def test_an_upgrade_is_answered_as_if_it_were_not_asked(
    port: HttpPort, protocol: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    upgrade = (
        b"Connection: Upgrade, close\r\nUpgrade: %s\r\nSec-WebSocket-Version: 13\r\n" % protocol
    )
    head, body = head_and_body(
        await say(port.port, b"GET /whole HTTP/1.1\r\n" + HOST + upgrade + b"\r\n")
    )
    assert (status_of(head), body) == (200, b"/whole")
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://localhost:8000/a%20b?c=d", b"/a b"),
        (b"HTTPS://localhost/a", b"/a"),
        (b"http://localhost:8000", b"/"),
        (b"http://localhost?c=http://d/e", b"/"),
    ],
)
async def test_a_target_may_have_the_absolute_form(
    port: HttpPort, target: bytes, path: bytes
) -> None:
    answer = await say(port.port, b"GET %s HTTP/1.1\r\n" % target + CLOSE)
    assert head_and_body(answer)[1] == path


SENT = b"GET / HTTP/1.1\r\nX-Request-Id: %s\r\n" % b"gateway-1"
UNREADABLE = {
    400: [b"no request\r\n\r\n"],
    408: [b"GET / HTTP/1.1\r\n"],
    431: [b"GET / HTTP/1.1\r\nA: " + b"a" * (port_limits.MAX_HEAD_BYTES + 1)],
}


@pytest.mark.parametrize(
    ("expected", "request_"),
    [
        (200, SENT + CLOSE),
        (405, SENT.replace(b"GET", b"PUT") + CLOSE),
        (403, SENT + CLOSE.replace(b"localhost", b"evil.example")),
        (431, SENT + b"a:\r\n" * 300 + CLOSE),
        (500, SENT.replace(b"/ ", b"/bug ") + CLOSE),
        (408, SENT.replace(b"GET", b"POST") + HOST + b"Content-Length: 10\r\n\r\na"),
    ],
)
async def test_each_answer_to_a_request_has_its_id(
    port: HttpPort, monkeypatch: pytest.MonkeyPatch, expected: int, request_: bytes
) -> None:
    monkeypatch.setattr(port_limits, "BODY_GRACE_S", 0.1)
    answer = await say(port.port, request_)
    head, _ = head_and_body(answer)
    assert status_of(answer) == expected
    assert head.count(b"x-request-id") == head.count(b"x-request-id: gateway-1\r\n") == 1


@pytest.mark.parametrize("status", [*UNREADABLE, 503])
async def test_answers_to_what_is_no_request_have_different_ids(
    monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    if status == 408:
        monkeypatch.setattr(port_limits, "HEAD_S", 0.1)
    ids = set()
    most = 1 if status == 503 else None
    limits = HttpLimits(max_connections_per_address=most)
    async with serving(show, limits=limits) as port, accepted(port.port):
        for _ in range(2):
            answer = await say(port.port, *UNREADABLE.get(status, ()))
            assert status_of(answer) == status
            head, _ = head_and_body(answer)
            ids |= {line for line in head.split(b"\r\n") if line.startswith(b"x-request-id: ")}
    assert len(ids) == 2


@pytest.mark.parametrize("label", [b"a" * 129, b"\xc3\xa9", b"", b"a\tb"])
async def test_an_id_that_is_no_label_is_replaced(port: HttpPort, label: bytes) -> None:
    head, _ = head_and_body(await say(port.port, SENT.replace(b"gateway-1", label) + CLOSE))
    (line,) = [one for one in head.split(b"\r\n") if one.startswith(b"x-request-id: ")]
    assert len(line) == len("x-request-id: ") + 32

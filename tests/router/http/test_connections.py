"""What clients may do with their connections: leave at any moment, send ahead, frame bodies oddly.

With each parser, in the clear and over TLS, against the processes of `serve`.
"""

import contextlib
import json
import socket
import ssl
import struct
import time
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit

import pytest

from tests.rpc.certificates import Authority
from tests.signalbox.stacks import Stack, environment, serve
from tests.waiting import EVENT_S, wait_until

pytestmark = pytest.mark.slow

HOST = b"Host: localhost\r\n"
GET = b"GET /load HTTP/1.1\r\n" + HOST + b"\r\n"
POST = b"POST /v1/completions HTTP/1.1\r\nContent-Type: application/json\r\n" + HOST
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n"


@dataclass(frozen=True, slots=True)
class Server:
    """A server whose steps take so long that a request of many tokens does not end by itself."""

    port: int
    parser: str
    context: ssl.SSLContext | None
    stack: Stack

    def connect(self) -> socket.socket:
        connection = socket.create_connection(("127.0.0.1", self.port), timeout=EVENT_S)
        if self.context is None:
            return connection
        return self.context.wrap_socket(connection, server_hostname="localhost")

    def say(self, *parts: bytes) -> bytes:
        """Returns all that is answered until the connection ends."""
        with self.connect() as connection:
            with contextlib.suppress(OSError):  # it has answered, and takes no more
                for part in parts:
                    connection.sendall(part)
            return read(connection)

    def cpu_s(self) -> float:
        """CPU time of all processes."""
        times = [child.cpu_times() for child in self.stack.children().values()]
        return float(sum(one.user + one.system for one in times))

    def load(self) -> int:
        answer = self.say(GET.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
        return int(json.loads(answer.partition(b"\r\n\r\n")[2])["server_load"])


def read(connection: socket.socket) -> bytes:
    answer = b""
    with contextlib.suppress(OSError):
        while part := connection.recv(1 << 16):
            answer += part
    return answer


def completion(**fields: object) -> bytes:
    body = json.dumps({"prompt": "one", **fields}).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


ENDLESS = completion(max_tokens=2000, ignore_eos=True)
STREAM = completion(max_tokens=2000, ignore_eos=True, stream=True)


@pytest.fixture(scope="module", params=["h11 over TLS", "httptools"])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    parser, _, tls = request.param.partition(" ")
    folder = tmp_path_factory.mktemp("server")
    variables, flags, context = {}, ["--simulate", "--simulated-step-ms=1000"], None
    if parser == "h11":
        (folder / "httptools.py").write_text("raise ImportError\n")
        variables["PYTHONPATH"] = f"{folder}:{environment().get('PYTHONPATH', '')}"
    else:
        pytest.importorskip("httptools")
    if tls:
        authority = Authority(folder)
        cert, key = authority.issue("localhost", "127.0.0.1")
        flags += [f"--tls-cert={cert}", f"--tls-key={key}"]
        context = ssl.create_default_context(cafile=authority.file)
    with serve(folder / "log", *flags, variables=variables) as stack:
        yield Server(urlsplit(stack.http_url()).port or 0, parser, context, stack)


def leave(connection: socket.socket, how: str) -> None:
    if how == "close_notify" and isinstance(connection, ssl.SSLSocket):
        connection.settimeout(0)
        with contextlib.suppress(OSError):  # the server's own may come later
            connection.unwrap()
        return
    if how == "RST":
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.close()
    else:
        connection.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("request_bytes", [ENDLESS, STREAM], ids=["whole", "stream"])
@pytest.mark.parametrize(
    "behind",
    [
        b"",
        GET,
        GET * 200,
        b"GET /load HTTP/1.1\r\nHost",
        b"POST / HTTP/1.1\r\n" + HOST + b"Content-Length: 200000\r\n\r\n" + b"a" * 150_000,
        ENDLESS * 2,
    ],
    ids=["nothing", "a request", "many", "half a head", "much", "long ones"],
)
@pytest.mark.parametrize("how", ["FIN", "RST", "close_notify"])
def test_a_client_that_leaves_ends_its_request_whatever_it_has_sent_ahead(
    server: Server, request_bytes: bytes, behind: bytes, how: str
) -> None:
    connection = server.connect()
    connection.sendall(request_bytes)
    wait_until(lambda: server.load() == 1)
    connection.sendall(behind)
    leave(connection, how)
    wait_until(lambda: server.load() == 0)
    connection.close()


def test_a_client_that_reads_no_answer_and_leaves_ends_its_next_request(server: Server) -> None:
    """Of a connection that has something left to write, asyncio does not tell that it has ended."""
    texts = json.dumps({"prompt": "a " * 100_000, "return_token_strs": True}).encode()
    large = POST.replace(b"/v1/completions", b"/tokenize")
    large += b"Content-Length: %d\r\n\r\n" % len(texts) + texts
    with server.connect() as connection:
        for _ in range(8):
            connection.sendall(large)
        connection.sendall(ENDLESS)
        wait_until(lambda: server.load() == 1)
        connection.shutdown(socket.SHUT_WR)
        wait_until(lambda: server.load() == 0)


def test_requests_that_are_sent_ahead_are_answered_or_left_to_the_client(server: Server) -> None:
    answer = server.say(GET * 4999, GET.replace(b"\r\n", b"\r\nConnection: close\r\n", 1))
    num_answers = answer.count(b"HTTP/1.1 200 OK")
    assert num_answers == 64 if server.parser == "httptools" else num_answers >= 64
    assert answer.count(b'{"server_load":0}') == num_answers


@pytest.mark.parametrize("sent_ahead", [False, True])
@pytest.mark.parametrize(
    "head",
    [
        b"GET /load?" + b"a" * 40_000 + b" HTTP/1.1\r\n" + HOST,
        GET[:-2] + b"a" * 40_000 + b": b\r\n",
        GET[:-2] + b"a: " + b"b" * 40_000 + b"\r\n",
        GET[:-2] + b"a:" + b" " * 40_000 + b"b\r\n",
        GET[:-2] + b"".join(b"a%d: %s\r\n" % (i, b"b" * 394) for i in range(100)),
    ],
    ids=["target", "name", "value", "spaces", "many"],
)
def test_a_head_has_a_limit_wherever_its_bytes_are(
    server: Server, head: bytes, sent_ahead: bool
) -> None:
    if sent_ahead and b" " * 16_000 in head:
        pytest.skip("bytes that no parser keeps are counted to the next read")
    answer = server.say(GET * sent_ahead + head + b"\r\n")
    assert [int(part[:3]) for part in answer.split(b"HTTP/1.1 ")[1:]] == [200] * sent_ahead + [431]


@pytest.mark.parametrize(
    "piece",
    [b"1;" + b"e" * 8000 + b"\r\n \r\n", b"1\r\n \r\n" * 1000, b"0\r\n" + b"a: b\r\n" * 1000],
    ids=["extensions", "bytes", "trailers"],
)
def test_the_framing_of_a_body_has_a_limit_of_its_own(server: Server, piece: bytes) -> None:
    answer = server.say(CHUNKED, *[piece] * 200)
    assert int(answer[9:12]) in (400, 413)
    assert server.load() == 0


def test_a_body_of_one_byte_chunks_is_read(server: Server) -> None:
    body = json.dumps({"prompt": "a" * 20_000, "max_tokens": 1, "model": "none"}).encode()
    chunks = b"".join(b"1;a=b\r\n%c\r\n" % byte for byte in body)
    answer = server.say(
        CHUNKED
        + chunks
        + b"0\r\nafter: all\r\n\r\n"
        + GET.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
    )
    assert b" 404 " in answer.partition(b"\r\n")[0]
    assert answer.endswith(b'{"server_load":0}')


def test_chunks_of_a_byte_take_a_small_share_of_the_router(server: Server) -> None:
    """A parser spends on a chunk what an ordinary body takes in all."""
    chunks = b"1\r\n \r\n" * 3000
    with contextlib.ExitStack() as exits:
        connections = [exits.enter_context(server.connect()) for _ in range(8)]
        for connection in connections:
            connection.sendall(CHUNKED)
            connection.settimeout(0)
        cpu_s, began = server.cpu_s(), time.monotonic()
        while (elapsed_s := time.monotonic() - began) < 2:
            for connection in connections:
                with contextlib.suppress(OSError):  # no room yet, or refused
                    connection.send(chunks)
            time.sleep(0.01)
        used_s = server.cpu_s() - cpu_s
    assert used_s < 0.6 * elapsed_s
    assert server.load() == 0

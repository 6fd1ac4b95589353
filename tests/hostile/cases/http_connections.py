"""Clients of the HTTP port that send slowly, endlessly, ambiguously, or for a web page."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tests.hostile.case import Answer, Case, Options, Target

NUM_SLOW = 1400
"""Connections, more than the router may open files."""
NUM_LARGE = 150
"""Bodies of 7 MiB, together more than the router may hold."""
MAX_LOG_BYTES = 64 << 10
"""Of what an attack may write to the router's log."""
FIRST_S = 30.0
POST = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
GET = b"GET /v1/models HTTP/1.1\r\n"
LOCAL = b"Host: localhost\r\n"
HEALTH = b"GET /health HTTP/1.1\r\nConnection: close\r\n" + LOCAL + b"\r\n"
BODY = {"prompt": "a", "max_tokens": 1}
QUICK = Options(
    constants=(
        ("signalbox_rpc.http.port_limits.BODY_GRACE_S", 1.0),
        ("signalbox_rpc.http.port_limits.HEAD_S", 1.0),
    )
)
"""The same bounds, sooner."""


def answer_of(data: bytes) -> Answer:
    """Returns the first answer on a connection."""
    if not data:
        return Answer("CLOSED")
    return Answer(data[9:12].decode(), data.decode(errors="replace"), len(data))


async def read_or_reset(reader: asyncio.StreamReader) -> bytes | None:
    """Reads to the end; None if a reset of the connection came before the answer was read."""
    try:
        return await reader.read()
    except ConnectionError:
        return None


@contextlib.asynccontextmanager
async def connected(
    target: Target, start: bytes, number: int = 1
) -> AsyncIterator[list[tuple[asyncio.StreamReader, asyncio.StreamWriter]]]:
    """So many connections that have sent this."""
    made = []
    try:
        for _ in range(number):
            made.append(await asyncio.open_connection(target.host, target.http_port))
            made[-1][1].write(start)
        yield made
    finally:
        for _, writer in made:
            writer.transport.abort()


async def say(target: Target, data: bytes) -> Answer:
    """Sends bytes, and reads until the router closes the connection."""
    async with connected(target, data) as ((reader, _),):
        return answer_of(await reader.read())


@contextlib.contextmanager
def short_log(target: Target) -> Iterator[None]:
    """Fails if the router writes much to its log meanwhile."""
    log = Path(f"/proc/{target.router_pid}/fd/2")
    before = log.stat().st_size
    yield
    written = log.stat().st_size - before
    assert written <= MAX_LOG_BYTES, f"{written} bytes were written to the log"


async def slow_clients(target: Target, start: bytes) -> list[Answer]:
    """Connects many that send no more, and asks as a new client beside them."""
    with short_log(target):
        async with connected(target, start, NUM_SLOW) as made:
            async with asyncio.timeout(FIRST_S):
                told = answer_of(await made[0][0].read())
                asked = [await target.post("/v1/completions", BODY) for _ in range(5)]
                health = await say(
                    target, b"GET /health HTTP/1.1\r\nConnection: close\r\n" + LOCAL + b"\r\n"
                )
    return [told, health, *asked]


async def slow_bodies(target: Target) -> list[Answer]:
    return await slow_clients(target, POST + b"Content-Length: 1000\r\n\r\n{")


async def slow_heads(target: Target) -> list[Answer]:
    return await slow_clients(target, POST)


async def a_byte_at_a_time(target: Target) -> list[Answer]:
    """A body, a head, and the body of a request that has been answered."""

    async def drip(start: bytes) -> Answer:
        async with connected(target, start) as ((reader, writer),):
            reading = asyncio.ensure_future(reader.read())
            while not reading.done():
                with contextlib.suppress(OSError):
                    writer.write(b"1")
                await asyncio.wait({reading}, timeout=0.1)
            return answer_of(await reading)

    starts = (POST + b"Content-Length: 100000\r\n\r\n[", POST + b"x: ")
    return list(await asyncio.gather(*map(drip, starts)))


async def unfinished_bodies(target: Target) -> list[Answer]:
    """Nearly all of many large bodies; returns what those were told whose bodies were given up."""
    head = POST + b"Content-Length: %d\r\n\r\n" % (8 << 20)
    most = b"[" + b" " * (7 << 20)
    async with contextlib.AsyncExitStack() as exits:
        reading = []
        for _ in range(NUM_LARGE):
            ((reader, writer),) = await exits.enter_async_context(connected(target, head))
            writer.write(most)
            with contextlib.suppress(ConnectionError):  # given up while it is sent
                await writer.drain()
            reading.append(asyncio.ensure_future(read_or_reset(reader)))
        await asyncio.wait(reading[: NUM_LARGE // 2])
        told = [one.result() for one in reading if one.done()]
        return [answer_of(data) for data in told if data is not None]


async def large_heads(target: Target) -> list[Answer]:
    """Many headers, long ones, and a line without an end."""
    return [
        await say(target, GET + LOCAL + b"a:\r\n" * 20_000 + b"\r\n"),
        await say(target, GET + LOCAL + b"a: " + b"x" * (8 << 20) + b"\r\n\r\n"),
        await say(target, b"GET /" + b"a" * (8 << 20)),
    ]


async def ambiguous(target: Target) -> list[Answer]:
    """Two lengths of a body, with a second request that only one of them ends before."""
    second = GET + LOCAL + b"\r\n"
    lengths = b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"
    return [await say(target, POST + lengths + second)]


async def unknown_version(target: Target) -> list[Answer]:
    return [await say(target, b"GET /v1/models HTTP/2.0\r\n" + LOCAL + b"\r\n" + GET + b"\r\n")]


async def web_page(target: Target) -> list[Answer]:
    """What a page of another origin sends, and one whose name leads to this machine."""
    typed = {"content-type": "application/json"}
    page = {"origin": "https://evil.example", "sec-fetch-site": "cross-site"}
    rebound = {"host": "evil.example", "origin": "http://evil.example"}
    return [
        await target.post("/v1/completions", BODY, headers=typed | page),
        await target.post("/v1/completions", BODY, headers=typed | rebound),
        await target.post("/tokenize", {"prompt": "a"}, headers={"origin": "null"}),
    ]


async def plain_text(target: Target) -> list[Answer]:
    """Types of bodies that a browser sends without asking."""
    kinds = ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
    return [
        await target.post("/v1/completions", BODY, headers={"content-type": kind}) for kind in kinds
    ]


CASES = (
    Case(
        name="slow-bodies-on-more-connections-than-files",
        attack=slow_bodies,
        codes=frozenset({"503", "200"}),
        says="too many connections",
        unbounded={"signalbox_rpc.http.port_limits.SHARE_OF_FILES": 100.0},
    ),
    Case(
        name="slow-heads-on-more-connections-than-files",
        attack=slow_heads,
        codes=frozenset({"503", "200"}),
        says="too many connections",
        unbounded={"signalbox_rpc.http.port_limits.SHARE_OF_FILES": 100.0},
    ),
    Case(
        name="a-byte-at-a-time",
        attack=a_byte_at_a_time,
        codes=frozenset({"408"}),
        says="too slowly",
        options=QUICK,
        unbounded={"signalbox_rpc.http.port_limits.BODY_GRACE_S": 1e6},
    ),
    Case(
        name="large-bodies-without-an-end",
        attack=unfinished_bodies,
        codes=frozenset({"503"}),
        says="unfinished bodies",
        unbounded={"signalbox_rpc.http.port_limits.MAX_UNFINISHED_BYTES": 1 << 40},
    ),
    Case(
        name="heads-without-an-end",
        attack=large_heads,
        codes=frozenset({"431"}),
        says="headers",
        unbounded={
            "signalbox_rpc.http.port_limits.MAX_HEAD_BYTES": 1 << 30,
            "signalbox_rpc.http.port_limits.MAX_HEADERS": 1 << 30,
        },
    ),
    Case(
        name="two-lengths-of-a-body",
        attack=ambiguous,
        codes=frozenset({"400"}),
        says="HTTP/1.",  # h11 leaves it to us to refuse them, httptools refuses them itself
    ),
    Case(
        name="unknown-version-of-http",
        attack=unknown_version,
        codes=frozenset({"505"}),
        says="HTTP/2.0 is not served",
    ),
    Case(
        name="requests-of-a-foreign-web-page",
        attack=web_page,
        codes=frozenset({"403"}),
        says="permission_error",
    ),
    Case(
        name="bodies-that-a-browser-sends-without-asking",
        attack=plain_text,
        codes=frozenset({"415"}),
        says="Content-Type",
    ),
)

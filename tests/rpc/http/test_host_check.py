"""Which names and pages an HTTP port answers: its own, and those that are allowed."""

import pytest

from signalbox_rpc.http.host_check import HostCheck, HttpAccess, is_same_origin
from signalbox_rpc.http.port_limits import OF_METRICS
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.tls import TlsConfig
from tests.rpc.http.http_parsers import PARSERS, serving, use_parser
from tests.rpc.http.test_client_connection import error_of, say, status_of

LOOPBACK = [
    "localhost",
    "localhost:8000",
    "LocalHost",
    "localhost.",
    "a.localhost",
    "127.0.0.1",
    "127.0.0.1:8000",
    "127.8.8.8:1",
    "[::1]",
    "[::1]:8000",
]
FOREIGN = [
    "evil.example",
    "evil.example:8000",
    "localhost.evil.example",
    "127.0.0.1.evil.example",
    "notlocalhost",
    "10.0.0.1",
    "[2001:db8::1]:80",
    "0.0.0.0",
    "",
    ":8000",
    "localhost@evil.example",
    "2130706433",
    "localhost evil.example",
]


@pytest.mark.parametrize("host", LOOPBACK)
def test_names_of_the_loopback_interface_are_answered_everywhere(host: str) -> None:
    assert HostCheck((), is_loopback=True).answers(host, "127.0.0.1")
    assert HostCheck(("llm.example",), is_loopback=False).answers(host, "10.0.0.5")


@pytest.mark.parametrize("host", FOREIGN)
def test_other_names_are_not_answered_on_a_loopback_port_or_where_names_are_listed(
    host: str,
) -> None:
    assert not HostCheck((), is_loopback=True).answers(host, "127.0.0.1")
    assert not HostCheck(("llm.example",), is_loopback=True).answers(host, "127.0.0.1")
    assert not HostCheck(("llm.example",), is_loopback=False).answers(host, "10.0.0.5")


def test_names_that_are_listed_are_answered() -> None:
    check = HostCheck(("LLM.example", "*.in.example", "2001:db8::1"), is_loopback=True)
    for host in ("llm.example:443", "a.in.example", "a.b.in.example", "[2001:DB8::1]:8000"):
        assert check.answers(host, "127.0.0.1"), host
    for host in ("x.llm.example", "in.example", "ain.example"):
        assert not check.answers(host, "127.0.0.1"), host
    assert HostCheck(("*",), is_loopback=True).answers("evil.example", "127.0.0.1")
    assert HostCheck((), is_loopback=False).answers("any.example", "10.0.0.5")


def test_the_address_that_a_client_has_connected_to_is_answered() -> None:
    check = HostCheck(("llm.example",), is_loopback=False)
    assert check.answers("10.0.0.5:9464", "10.0.0.5")
    assert check.answers("10.0.0.5", "::ffff:10.0.0.5")
    assert check.answers("[fd00::5]", "fd00:0::5")
    assert not check.answers("10.0.0.6", "10.0.0.5")


@pytest.mark.parametrize("name", ["https://a.example", "a.example:80", "a*", "", " a", "a/b", "**"])
def test_what_is_no_name_cannot_be_allowed(name: str) -> None:
    with pytest.raises(ValueError, match="allowed_hosts"):
        HttpAccess(hosts=(name,))


@pytest.mark.parametrize(
    ("origin", "host", "scheme", "expected"),
    [
        ("http://localhost:8000", "localhost:8000", "http", True),
        ("http://llm.example", "llm.example:80", "http", True),
        ("https://llm.example", "llm.example", "http", True),  # TLS ends at a proxy
        ("https://llm.example", "llm.example", "https", True),
        ("http://LLM.example", "llm.example", "http", True),
        ("http://[::1]:8000", "[::1]:8000", "http", True),
        ("http://llm.example", "llm.example", "https", False),
        ("http://localhost:3000", "localhost:8000", "http", False),
        ("http://127.0.0.1:8000", "localhost:8000", "http", False),
        ("https://evil.example", "localhost:8000", "http", False),
        ("https://localhost.evil.example", "localhost", "http", False),
        ("null", "localhost:8000", "http", False),
        ("null", "null", "http", False),
        ("file://", "", "http", False),
        ("chrome-extension://abc", "abc", "http", False),
        ("http://a:x", "a:x", "http", False),
        ("http://[", "[", "http", False),
        ("", "", "http", False),
    ],
)
def test_a_page_is_ours_if_its_origin_is_the_host(
    origin: str, host: str, scheme: str, expected: bool
) -> None:
    assert is_same_origin(origin, host, scheme=scheme) is expected


@pytest.mark.parametrize("parser", PARSERS)
async def test_a_port_refuses_foreign_names_and_pages(
    parser: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_parser(parser, monkeypatch)
    evil = "Origin: https://evil.example\r\n"

    async def send(more: str, host: str = "localhost", **options: object) -> bytes:
        async with serving(**options) as port:
            head = f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 0\r\n{more}"
            return await say(port.port, f"{head}Connection: close\r\n\r\n".encode())

    answer = await send("", host="evil.example")
    assert status_of(answer) == 403
    assert error_of(answer) == (
        "Host: requests for this name are not answered here; --allowed-hosts names the hosts that"
        " are; given: 'evil.example'"
    )
    answer = await send(evil)
    assert status_of(answer) == 403
    assert error_of(answer) == (
        "Origin: pages of it may not call this server; --allowed-origins names those that may;"
        " given: 'https://evil.example'"
    )
    assert status_of(await send("Origin: null\r\n")) == 403
    assert status_of(await send("Sec-Fetch-Site: cross-site\r\n")) == 403
    ours = "Origin: http://localhost\r\n"
    assert status_of(await send(ours + evil)) == 403
    assert status_of(await send(f"{ours}Sec-Fetch-Site: cross-site\r\n")) == 403
    for site in ("same-origin", "same-site", "none"):
        assert status_of(await send(f"Sec-Fetch-Site: {site}\r\n")) == 200
    assert status_of(await send(ours + "Sec-Fetch-Site: same-origin\r\n")) == 200

    named = HttpAccess(hosts=("evil.example",), origins=("https://evil.example",))
    assert status_of(await send("", host="evil.example", access=named)) == 200
    foreign = f"{evil}Sec-Fetch-Site: cross-site\r\n"
    assert status_of(await send(foreign, access=named)) == 200
    assert status_of(await send("Sec-Fetch-Site: cross-site\r\n", access=named)) == 403
    assert status_of(await send("Origin: https://b.example\r\n", access=named)) == 403
    assert status_of(await send(foreign, access=HttpAccess(origins=("*",)))) == 200


async def test_a_port_that_others_reach_answers_any_name_unless_some_are_listed() -> None:
    request = b"GET / HTTP/1.1\r\nHost: any.example\r\nConnection: close\r\n\r\n"
    endpoint = Endpoint(host="0.0.0.0", tls=TlsConfig(insecure=True))
    async with serving(endpoint=endpoint, limits=OF_METRICS) as port:
        assert status_of(await say(port.port, request)) == 200
    access = HttpAccess(hosts=("llm.example",))
    async with serving(endpoint=endpoint, limits=OF_METRICS, access=access) as port:
        assert status_of(await say(port.port, request)) == 403
        assert status_of(await say(port.port, request.replace(b"any.", b"llm."))) == 200


LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate", "sec-fetch-dest": "document"}


@pytest.mark.parametrize(
    ("target", "changed", "expected"),
    [
        ("GET /page", {}, 200),
        ("GET /page?a=b", {}, 200),
        ("HEAD /page", {}, 200),
        ("GET /other", {}, 403),
        ("GET /page/other", {}, 403),
        ("POST /page", {}, 403),
        ("GET /page", {"sec-fetch-dest": "iframe"}, 403),
        ("GET /page", {"sec-fetch-dest": "script", "sec-fetch-mode": "no-cors"}, 403),
        ("GET /page", {"sec-fetch-mode": "cors"}, 403),
        ("GET /page", {"sec-fetch-mode": ""}, 403),
        ("GET /page", {"origin": "https://evil.example"}, 403),
        ("GET /page", {"origin": "null"}, 403),
        ("GET /page", {"host": "evil.example"}, 403),
    ],
)
async def test_a_link_on_another_page_opens_pages_and_nothing_else(
    target: str, changed: dict[str, str], expected: int
) -> None:
    fields = {"host": "localhost", "connection": "close", **LINK, **changed}
    head = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    async with serving(access=HttpAccess(pages=frozenset(["/page"]))) as port:
        answer = await say(port.port, f"{target} HTTP/1.1\r\n{head}\r\n".encode())
    assert status_of(answer) == expected

"""TLS on our servers and channels: peers that get in, their names, and renewed files."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from signalbox_rpc.interceptors.peer_roles import PeerNames
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.listening_ports import BindError, Endpoint, check_exposure
from signalbox_rpc.transport.server import Server
from signalbox_rpc.transport.tls import TlsConfig, TlsError
from tests.grpc_errors import code_of
from tests.rpc.certificates import Authority
from tests.rpc.echo import NAME, Echo, add_echo, call, text
from tests.waiting import EVENT_S

CALLERS = {f"/{NAME}/": ("router",), f"/{NAME}/both_stream": ("worker",)}


@asynccontextmanager
async def serving(tls: TlsConfig, **options: Any) -> AsyncIterator[Server]:
    server = Server(Endpoint(tls=tls), **options)
    server.add(Echo(), add_echo, name=NAME)
    await server.start()
    yield server
    await server.drain(grace_s=0)


async def ask(server: Server, tls: TlsConfig, *, server_name: str | None = None) -> list[str]:
    channel = open_channel(server.address, tls=tls, server_name=server_name)
    async with channel, asyncio.timeout(EVENT_S):
        return await call(channel, "unary", text("hello"))


async def serial_at(server: Server) -> int:
    """The serial number of the certificate that a new connection is shown."""
    from cryptography import x509

    host, _, port = server.address.rpartition(":")
    pem = await asyncio.to_thread(ssl.get_server_certificate, (host, int(port)))
    return x509.load_pem_x509_certificate(pem.encode()).serial_number


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


async def test_a_channel_believes_only_its_authority(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    cert, key = authority.issue("127.0.0.1")
    async with serving(TlsConfig(cert=cert, key=key)) as server:
        assert await ask(server, TlsConfig(ca=authority.file)) == ["hello"]
        stranger = TlsConfig(ca=Authority(tmp_path / "other").file)
        assert await code_of(ask(server, stranger)) is grpc.StatusCode.UNAVAILABLE
        assert await code_of(ask(server, TlsConfig())) is grpc.StatusCode.UNAVAILABLE


async def test_a_certificate_for_another_name_is_refused_unless_expected(
    authority: Authority,
) -> None:
    cert, key = authority.issue("api.example.org")
    async with serving(TlsConfig(cert=cert, key=key)) as server:
        tls = TlsConfig(ca=authority.file)
        assert await code_of(ask(server, tls)) is grpc.StatusCode.UNAVAILABLE
        assert await ask(server, tls, server_name="api.example.org") == ["hello"]


async def test_a_client_without_a_certificate_is_not_heard_under_mtls(
    authority: Authority,
) -> None:
    async with serving(authority.member("scheduler", "127.0.0.1")) as server:
        anonymous = TlsConfig(ca=authority.file)
        assert await code_of(ask(server, anonymous)) is grpc.StatusCode.UNAVAILABLE
        assert await ask(server, authority.member("anybody")) == ["hello"]


async def test_a_peer_may_call_what_its_name_allows_and_nothing_else(
    authority: Authority,
) -> None:
    async with serving(authority.member("scheduler", "127.0.0.1"), callers=CALLERS) as server:
        assert await ask(server, authority.member("router")) == ["hello"]
        assert await ask(server, authority.member("router.prod.example")) == ["hello"]
        for name in ("worker", "routers", "x.router", "operator"):
            refused = await code_of(ask(server, authority.member(name)))
            assert refused is grpc.StatusCode.PERMISSION_DENIED, name
        async with open_channel(server.address, tls=authority.member("worker")) as channel:
            assert await call(channel, "both_stream", text("a"), text("b")) == ["a", "b"]


async def test_names_of_roles_can_be_set(authority: Authority) -> None:
    tls = authority.member("127.0.0.1", peer_names="router=edge-*.example,router=front")
    async with serving(tls, callers=CALLERS) as server:
        assert await ask(server, authority.member("edge-7.example")) == ["hello"]
        assert await ask(server, authority.member("front")) == ["hello"]
        refused = await code_of(ask(server, authority.member("router")))
        assert refused is grpc.StatusCode.PERMISSION_DENIED


async def test_a_renewed_certificate_is_shown_while_a_stream_goes_on(
    authority: Authority,
) -> None:
    cert, key = authority.issue("127.0.0.1", file_name="server")
    tls = TlsConfig(cert=cert, key=key, ca=authority.file)
    async with serving(tls) as server, open_channel(server.address, tls=tls) as channel:
        stub = channel.stream_stream(f"/{NAME}/both_stream")
        stream = stub()
        await stream.write(text("before"))
        assert await stream.read() == text("before")
        first = await serial_at(server)
        authority.issue("127.0.0.1", file_name="server")
        second = await serial_at(server)
        assert first != second
        Path(key).write_text("half a key")  # noqa: ASYNC240 (a temporary file)
        assert await serial_at(server) == second
        await stream.write(text("after"))
        assert await stream.read() == text("after")
        stream.cancel()


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"cert": "x.pem"}, "tls_cert and tls_key go together"),
        ({"client_ca": "x.pem"}, "tls_client_ca needs tls_cert"),
    ],
)
def test_half_a_set_of_files_is_refused(files: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        TlsConfig(**files)


async def test_an_unusable_file_is_named_in_one_line(authority: Authority, tmp_path: Path) -> None:
    cert, _ = authority.issue("127.0.0.1")
    _, other_key = authority.issue("other")
    with pytest.raises(TlsError, match=r"127\.0\.0\.1\.pem.*other\.key") as caught:
        await Server(Endpoint(tls=TlsConfig(cert=cert, key=other_key))).start()
    assert "\n" not in str(caught.value)
    with pytest.raises(TlsError, match="absent"):
        open_channel("127.0.0.1:1", tls=TlsConfig(ca=str(tmp_path / "absent")))


@pytest.mark.parametrize("entry", ["router", "driver=x", "router="])
def test_a_peer_name_without_a_role_is_refused(entry: str) -> None:
    with pytest.raises(ValueError, match="ROLE=NAME"):
        PeerNames.parse(entry)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]", "10.0.0.1", "example.org", ""])
def test_a_port_that_others_reach_needs_protection_or_a_word(host: str) -> None:
    files, address = {"cert": "a", "key": "b"}, f"{host}:1"
    with pytest.raises(BindError, match=r"--tls-cert.*--insecure"):
        check_exposure(address, TlsConfig())
    with pytest.raises(BindError, match=r"--tls-client-ca.*--insecure"):
        check_exposure(address, TlsConfig(**files), names_callers=True)
    check_exposure(address, TlsConfig(**files))
    check_exposure(address, TlsConfig(**files, client_ca="c"), names_callers=True)
    check_exposure(address, TlsConfig(insecure=True), names_callers=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "[::1]", "localhost"])
def test_the_loopback_needs_none(host: str) -> None:
    check_exposure(f"{host}:1", TlsConfig(), names_callers=True)


async def test_a_server_refuses_to_listen_unprotected() -> None:
    with pytest.raises(BindError, match="in the clear"):
        await Server(Endpoint(host="0.0.0.0")).start()
    with pytest.raises(BindError, match="anybody"):
        await Server(Endpoint(host="0.0.0.0"), callers=CALLERS).start()

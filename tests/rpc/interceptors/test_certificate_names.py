"""A certificate's role comes from its DNS names alone, and from a whole one."""

import ssl
from pathlib import Path

import grpc
import pytest

from signalbox_rpc.interceptors.certificate_names import dns_names
from signalbox_rpc.transport.channel import open_channel
from tests.grpc_errors import code_of
from tests.rpc.certificates import Authority
from tests.rpc.echo import call, text
from tests.rpc.odd_certificates import DNS, EMAIL, IP, URI, member
from tests.rpc.transport.test_tls import CALLERS, ask, serving


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


@pytest.mark.parametrize(
    "names",
    [
        [(EMAIL, b"router.bob@example.com")],
        [(EMAIL, b"router.example")],
        [(URI, b"router")],
        [(URI, b"router.example")],
        [(IP, bytes([10, 0, 0, 1]))],
        [(DNS, b"router\0.evil.example")],
        [(DNS, b"router.\0evil.example")],
        [(DNS, b"router.example\0")],
        [(DNS, b"ROUTER")],
        [(DNS, b"router.")],
        [(DNS, b"router.example.")],
        [(DNS, b"router..example")],
        [(DNS, b"router.*")],
        [(DNS, b"router.a_b")],
        [(DNS, b"router.example evil")],
        [(DNS, b"router.example\n")],
        [(DNS, b"router.\xc3\xa9")],
        [(DNS, b"evil"), (URI, b"router"), (EMAIL, b"router.a@b")],
        [],
    ],
    ids=repr,
)
async def test_what_is_no_dns_name_of_the_role_does_not_let_in(
    authority: Authority, tmp_path: Path, names: list[tuple[int, bytes]]
) -> None:
    async with serving(authority.member("scheduler", "127.0.0.1"), callers=CALLERS) as server:
        client = member(authority, tmp_path, *names, common_name="router")
        assert await code_of(ask(server, client)) is grpc.StatusCode.PERMISSION_DENIED


@pytest.mark.parametrize(
    "names",
    [
        [(DNS, b"router")],
        [(DNS, b"router.prod-1.example")],
        [(DNS, b"router.Example")],
        [(EMAIL, b"bob@example.com"), (DNS, b"x"), (DNS, b"router.x")],
        [(DNS, b"router." + b".".join([b"a" * 60] * 4))],  # lengths of two bytes
    ],
    ids=repr,
)
async def test_a_dns_name_of_the_role_lets_in(
    authority: Authority, tmp_path: Path, names: list[tuple[int, bytes]]
) -> None:
    async with serving(authority.member("scheduler", "127.0.0.1"), callers=CALLERS) as server:
        assert await ask(server, member(authority, tmp_path, *names)) == ["hello"]


async def test_a_pattern_matches_the_whole_name(authority: Authority, tmp_path: Path) -> None:
    tls = authority.member("127.0.0.1", peer_names="router=edge,worker=gpu-?.example")
    async with serving(tls, callers=CALLERS) as server:
        for name in (b"edge.example", b"my-edge", b"xedge"):
            client = member(authority, tmp_path, (DNS, name))
            assert await code_of(ask(server, client)) is grpc.StatusCode.PERMISSION_DENIED, name
        assert await ask(server, member(authority, tmp_path, (DNS, b"edge"))) == ["hello"]
        worker = member(authority, tmp_path, (DNS, b"gpu-7.example"))
        async with open_channel(server.address, tls=worker) as channel:
            assert await call(channel, "both_stream", text("a")) == ["a"]


async def test_the_refusal_names_what_the_certificate_is_for(
    authority: Authority, tmp_path: Path
) -> None:
    async with serving(authority.member("scheduler", "127.0.0.1"), callers=CALLERS) as server:
        client = member(authority, tmp_path, (EMAIL, b"router.bob@example.com"))
        with pytest.raises(grpc.aio.AioRpcError, match="no DNS name"):
            await ask(server, client)


def test_names_are_read_whole(authority: Authority, tmp_path: Path) -> None:
    names = [(DNS, b"a\0b"), (URI, b"uri"), (DNS, b"x" * 200), (EMAIL, b"e"), (DNS, b"")]
    client = member(authority, tmp_path, *names)
    assert client.cert is not None
    assert dns_names(Path(client.cert).read_bytes()) == {b"a\0b", b"x" * 200, b""}


@pytest.mark.parametrize("pem", [b"", b"\xff", b"-----BEGIN CERTIFICATE-----"])
def test_what_is_no_certificate_has_no_names(pem: bytes) -> None:
    assert dns_names(pem) == frozenset()


def test_a_certificate_that_is_cut_has_no_more_names(authority: Authority) -> None:
    leaf, _, _ = Path(authority.issue("router")[0]).read_text().partition("-----END")
    whole = ssl.PEM_cert_to_DER_cert(f"{leaf}-----END CERTIFICATE-----\n")
    assert dns_names(ssl.DER_cert_to_PEM_cert(whole).encode()) == {b"router"}
    for length in range(len(whole)):
        assert dns_names(ssl.DER_cert_to_PEM_cert(whole[:length]).encode()) == frozenset()

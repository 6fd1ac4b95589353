"""Addresses are refused before they are dialled, and what gRPC can dial is not."""

import pytest

from signalbox_rpc.transport.addresses import address_fault, host_fault


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1:50052",
        "scheduler.signalbox.svc.cluster.local:1",
        "[::1]:65535",
        "[fe80::1%eth0]:50052",
        "dns:///scheduler:50052",
        "unix:/run/signalbox.sock",
        "unix:///run/signalbox.sock",
    ],
)
def test_what_can_be_dialled_has_no_fault(address: str) -> None:
    assert address_fault(address) is None


@pytest.mark.parametrize(
    ("address", "remedy"),
    [
        ("https://scheduler:50052", "leave https:// out, TLS is what --tls-ca is for"),
        ("grpc://scheduler:50052/path", "leave grpc:// out"),
        ("scheduler", "give both"),
        ("", "give both"),
        (":50052", "give both"),
        ("scheduler:", "give both"),
        ("scheduler:http", "give both"),
        ("scheduler:0", "give both"),
        ("scheduler:65536", "give both"),
        ("scheduler:50052/path", "give both"),
        ("::1:50052", "such as [::1]:50052"),
        ("a:1,b:2", "give one alone"),
        (" scheduler:50052", "give one alone"),
    ],
)
def test_what_cannot_is_refused_with_its_remedy(address: str, remedy: str) -> None:
    fault = address_fault(address)
    assert fault is not None
    assert fault.startswith("no HOST:PORT; ")
    assert remedy in fault


@pytest.mark.parametrize("host", ["0.0.0.0", "", "::", "[::1]", "fe80::1%eth0", "scheduler-0.a.b"])
def test_a_host_is_a_name_or_a_number(host: str) -> None:
    assert host_fault(host) is None


@pytest.mark.parametrize("host", ["https://a", "0.0.0.0:50051", "a,b", "a b", "a/b", "[a]:1"])
def test_what_is_more_than_a_host_is_none(host: str) -> None:
    assert host_fault(host) is not None

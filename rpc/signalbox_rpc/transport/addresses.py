"""Checks addresses: HOST:PORT, or a target in one of gRPC's own schemes.

gRPC accepts nearly any text and fails when it first dials, with an error of name resolution: a
URL's scheme becomes a host, a missing port 443. So settings with addresses are checked here first.
"""

import ipaddress

_SCHEMES = ("dns:", "ipv4:", "ipv6:", "unix:", "unix-abstract:", "vsock:", "xds:")
_MAX_PORT = 65535
IPV6_PREFIX_BITS = 64
"""Bits of an IPv6 address that identify a client. A client is commonly given a network of this
size, and may use each address in it."""


def address_fault(address: str) -> str | None:
    """Returns what is wrong with an address that gRPC is to dial; None if it is valid."""
    if address.startswith(_SCHEMES):
        return None
    host, _, port = address.rpartition(":")
    if fault := _url_fault(address):
        return f"no HOST:PORT; {fault}"
    if not host or not port.isdecimal() or not 0 < int(port) <= _MAX_PORT:
        return "no HOST:PORT; gRPC has no usual port, so give both, such as 127.0.0.1:50052"
    if fault := host_fault(host):
        return f"no HOST:PORT; the host is {fault}"
    if ":" in host and not host.startswith("["):
        return f"no HOST:PORT; put brackets around an IPv6 host, such as [{host}]:{port}"
    return None


def host_fault(host: str) -> str | None:
    """Returns what is wrong with the name or address of a machine; None if it is valid."""
    if fault := _url_fault(host):
        return f"a URL; {fault}"
    if not set(host).isdisjoint(" \t\n,/@"):
        return "no name or number of a machine; give one alone"
    if ":" in host and not _is_ipv6(host.removeprefix("[").removesuffix("]")):
        return "no name or number of a machine; a port is a setting of its own"
    return None


def client_of(address: str) -> str:
    """Returns the part of an address that identifies a client: for IPv6, the network."""
    host, _, _ = address.partition("%")  # an IPv6 scope, such as %eth0
    try:
        parsed = ipaddress.ip_address(host)
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, IPV6_PREFIX_BITS), strict=False))


def _url_fault(text: str) -> str | None:
    scheme, is_url, _ = text.partition("://")
    if not is_url:
        return None
    return f"leave {scheme}:// out" + (", TLS is what --tls-ca is for" if scheme == "https" else "")


def _is_ipv6(text: str) -> bool:
    try:
        return ipaddress.ip_address(text).version == 6
    except ValueError:
        return False

"""Decides which host names and origins of web pages an HTTP port answers.

A browser sends requests for any page that is open in it, to servers that only its machine reaches.
It names the page's origin in `Origin` and in `Sec-Fetch-Site`. A page whose own name resolves to
such a server (DNS rebinding) counts as of the same origin there, but its name is in `Host`.
"""

import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from urllib.parse import SplitResult, urlsplit

ANY = "*"
MAX_REMEMBERED = 256
"""Hosts whose check is remembered; nearly all requests name the same host."""
_DEFAULT_PORTS = {"http": 80, "https": 443}


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpAccess:
    """Host names and origins that a port answers beside its own."""

    hosts: tuple[str, ...] = ()
    """Names in a request's `Host`; "*.name" is every name below `name`, "*" any name at all."""
    origins: tuple[str, ...] = ()
    """Origins of web pages that may call, such as "https://host"; "*" is any."""
    pages: frozenset[str] = frozenset()
    """Paths of pages that a link on any page may open."""

    def __post_init__(self) -> None:
        for name in self.hosts:
            if fault := allowed_host_fault(name):
                raise ValueError(f"allowed_hosts has {name!r}, which is {fault}")


NO_ACCESS = HttpAccess()


def allowed_host_fault(pattern: str) -> str | None:
    """Returns what is wrong with an entry of `allowed_hosts`; None if it is valid."""
    if pattern == ANY:
        return None
    name = pattern.removeprefix("*.")
    if "*" in name:
        return "no name; * stands alone, or before a name as in *.example.com"
    if "/" in name or name != name.strip() or not name:
        return "no name of a host; give it without scheme and path"
    if _address(name.strip("[]")) is None and ":" in name:
        return "no name of a host; give it without a port"
    return None


class HostCheck:
    """Decides which values of `Host` a port answers."""

    def __init__(self, allowed: Sequence[str], *, is_loopback: bool) -> None:
        """`is_loopback` is True if the port listens where this machine alone reaches it."""
        self._names = {_plain(name) for name in allowed if not name.startswith(ANY)}
        self._suffixes = tuple(_plain(name[1:]) for name in allowed if name.startswith("*."))
        self._takes_any = ANY in allowed or (not allowed and not is_loopback)
        self.answers = lru_cache(MAX_REMEMBERED)(self._answers)
        """Returns whether a request for a host that came to a local address is answered."""

    def _answers(self, host: str, local_address: str) -> bool:
        """Returns the same as `answers`, without remembering it.

        The address that a client has connected to is answered, because probes and scrapers write
        it, and so are the names of the loopback interface: only a server on this machine or at that
        address can send a page of such an origin.
        """
        if self._takes_any:
            return True
        name = _plain(_without_port(host))
        return (
            name in self._names
            or is_loopback_name(name)
            or ((address := _address(name)) is not None and address == _address(local_address))
            or (bool(self._suffixes) and name.endswith(self._suffixes))
        )


def is_loopback_name(name: str) -> bool:
    """Returns whether a host name or address leads to the local machine."""
    address = _address(name)
    if address is not None:
        return address.is_loopback
    return name == "localhost" or name.endswith(".localhost")


def is_same_origin(origin: str, host: str, *, scheme: str) -> bool:
    """Returns whether a page of `origin` was sent by the server that `host` names.

    Args:
        scheme: the port's scheme. A proxy in front may speak TLS for a port in the clear.
    """
    try:
        page, server = urlsplit(origin), urlsplit(f"//{host}")
        pages = _place(page, page.scheme)
        ours = _place(server, page.scheme)
    except ValueError:
        return False
    if page.scheme not in _DEFAULT_PORTS or (scheme == "https" and page.scheme != scheme):
        return False
    return bool(page.hostname) and pages == ours


def _place(url: SplitResult, scheme: str) -> tuple[str, int | None]:
    port = url.port
    return _plain(url.hostname or ""), _DEFAULT_PORTS.get(scheme) if port is None else port


def _without_port(host: str) -> str:
    if host.startswith("["):
        return host.partition("]")[0][1:]
    return host.partition(":")[0]


def _plain(name: str) -> str:
    """Returns a name in the form used for comparing: lower case, no brackets, no final dot."""
    return name.lower().strip("[]").removesuffix(".")


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address

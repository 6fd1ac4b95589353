"""Ports for services that tests start as processes, or start again at the same address.

Services that choose their port (0) and say which one they got need none of these.
"""

import socket
from collections.abc import Iterator
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

APART = 10
"""Distance of ports that are given out; `serve` also takes the ports after its own."""
BLOCK = 500
LOWEST = 10_000
"""Well-known services are below."""
LINUX_DEFAULT = 32_768
"""First port that Linux picks for a connection or for a service that leaves the choice to it."""


class OwnPorts(NamedTuple):
    """A block of ports that no other process of tests has."""

    claim: socket.socket
    """Bound to the first port of the block until this process ends, and never listens."""
    ports: Iterator[int]


def free_port() -> int:
    """Returns a port that nothing listens on, nor on the nine after it.

    Processes of tests have ports of their own, and the kernel picks none of them for others.
    """
    own = own_ports()
    for _ in range(BLOCK // APART):
        port = next(own.ports)
        if all(_is_free(one) for one in range(port, port + APART)):
            return port
    raise RuntimeError(f"services listen on all of the ports from {own.claim.getsockname()[1]}")


@cache
def own_ports() -> OwnPorts:
    for first in range(first_that_the_kernel_picks() - BLOCK, LOWEST - 1, -BLOCK):
        claim = socket.socket()
        try:
            claim.bind(("127.0.0.1", first))
        except OSError:  # another process of tests has this block
            claim.close()
        else:
            return OwnPorts(claim, cycle(range(first + APART, first + BLOCK, APART)))
    raise RuntimeError("other processes of tests have all ports")


def first_that_the_kernel_picks() -> int:
    setting = Path("/proc/sys/net/ipv4/ip_local_port_range")
    first = int(setting.read_text().split()[0]) if setting.exists() else LINUX_DEFAULT
    return first if first >= LOWEST + BLOCK else LINUX_DEFAULT


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as services do
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True

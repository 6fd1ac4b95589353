"""Hosts with a network of their own on this machine: Linux network namespaces on a switch."""

import contextlib
import ctypes
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_CLONE_NEWNET = 0x40000000
_THIS_THREAD, _NAMED = Path("/proc/thread-self/ns/net"), Path("/run/netns")
_NET = "198.18"
"""For measuring networks (RFC 2544), so that nothing else has these addresses."""


class NoHosts(Exception):
    """This machine does not let this process make network namespaces."""


class Host:
    """A namespace with one interface, eth0, and a port on the switch."""

    def __init__(self, stem: str, index: int) -> None:
        self.name = f"{stem}h{index}"
        # Runs beside this one have other addresses, as this machine reaches all of them.
        block = os.getpid() % 4096 * 16
        self.address = f"{_NET}.{block >> 8}.{(block & 255) + index}"
        self._switch, self._port = f"{stem}s", f"port{index}"

    @property
    def command(self) -> list[str]:
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self.name]

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Processes that this thread starts, and sockets that it opens, are on this host."""
        with _THIS_THREAD.open() as outside, (_NAMED / self.name).open() as own:
            _enter(own.fileno())
            try:
                yield
            finally:
                _enter(outside.fileno())

    def drop(self, other: "Host") -> None:
        """Drops what this host sends to another one, and tells nothing of it."""
        run(*self.command, "ip", "route", "add", "blackhole", f"{other.address}/32")

    def cut_off(self) -> None:
        """Drops all packets to and from this host, and tells nothing of it."""
        run("ip", "-n", self._switch, "link", "set", self._port, "nomaster")

    def connect(self) -> None:
        """Lets packets pass, as at first."""
        run("ip", "-n", self._switch, "link", "set", self._port, "master", "switch", "up")


@contextlib.contextmanager
def hosts(number: int) -> Iterator[list[Host]]:
    """Yields hosts that reach each other, and that this process reaches. Raises NoHosts."""
    stem = f"sb{os.getpid()}"
    switch, made = f"{stem}s", [Host(stem, i) for i in range(1, number + 1)]
    try:
        run("ip", "netns", "add", switch)
    except (OSError, subprocess.CalledProcessError):
        raise NoHosts("network namespaces need the rights of root") from None
    try:
        run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "switch", "up")
        for host in made:
            run("ip", "netns", "add", host.name)
            run("ip", "-n", host.name, "link", "set", "lo", "up")
            peer = ("peer", "name", host._port, "netns", switch)
            run("ip", "-n", host.name, "link", "add", "eth0", "type", "veth", *peer)
            _plug(host, "eth0", "-n", host.name)
        here = Host(stem, number + 1)
        peer = ("peer", "name", here._port, "netns", switch)
        run("ip", "link", "add", stem, "type", "veth", *peer)
        _plug(here, stem)
        yield made
    finally:
        subprocess.run(["ip", "link", "del", stem], capture_output=True, check=False)
        for name in (switch, *(host.name for host in made)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _plug(host: Host, interface: str, *where: str) -> None:
    host.connect()
    run("ip", *where, "address", "add", f"{host.address}/28", "dev", interface)
    run("ip", *where, "link", "set", interface, "up")


def _enter(namespace: int) -> None:
    if _LIBC.setns(namespace, _CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), "cannot enter a network namespace")


def run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True)

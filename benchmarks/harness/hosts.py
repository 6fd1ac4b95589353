"""Hosts with a network of their own on this machine: Linux network namespaces on a switch."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import pytest

SUBNET = "10.77.0"


class Host:
    """A namespace with one interface, eth0."""

    def __init__(self, name: str, index: int) -> None:
        self.name = name
        self.address = f"{SUBNET}.{index}"

    @property
    def command(self) -> list[str]:
        """What runs a command on this host."""
        return ["ip", "netns", "exec", self.name]

    def drop(self, other: "Host") -> None:
        """Drops what this host sends to another one, and tells nothing of it."""
        run(*self.command, "ip", "route", "add", "blackhole", f"{other.address}/32")

    def cut_off(self) -> None:
        run(*self.command, "ip", "link", "set", "eth0", "down")


@contextlib.contextmanager
def hosts(number: int) -> Iterator[list[Host]]:
    """Yields hosts that reach each other; skips where namespaces may not be made."""
    stem = f"sb{os.getpid()}"
    switch, made = f"{stem}s", [Host(f"{stem}h{i}", i) for i in range(1, number + 1)]
    try:
        run("ip", "netns", "add", switch)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("network namespaces need the rights of root")
    try:
        run("ip", "-n", switch, "link", "add", "switch", "type", "bridge")
        run("ip", "-n", switch, "link", "set", "switch", "up")
        for i, host in enumerate(made):
            run("ip", "netns", "add", host.name)
            run("ip", "-n", host.name, "link", "set", "lo", "up")
            peer = ("peer", "name", f"port{i}", "netns", switch)
            run("ip", "-n", host.name, "link", "add", "eth0", "type", "veth", *peer)
            run("ip", "-n", switch, "link", "set", f"port{i}", "master", "switch", "up")
            run("ip", "-n", host.name, "address", "add", f"{host.address}/24", "dev", "eth0")
            run("ip", "-n", host.name, "link", "set", "eth0", "up")
        yield made
    finally:
        for name in (switch, *(host.name for host in made)):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def run(*command: str) -> None:
    subprocess.run(command, capture_output=True, check=True)

"""Processes of tests, of one run or of several, take no port of each other's services."""

import socket
import subprocess
import sys

from tests import ports

OTHER = "from tests import ports; print(*(ports.free_port() for _ in range(ports.BLOCK)))"


def test_processes_have_ports_of_their_own() -> None:
    ours = {ports.free_port() for _ in range(ports.BLOCK)}
    done = subprocess.run(
        [sys.executable, "-c", OTHER], capture_output=True, text=True, check=True
    ).stdout
    theirs = set(map(int, done.split()))
    assert ours and theirs and ours.isdisjoint(theirs)
    assert max(ours | theirs) + ports.APART <= ports.first_that_the_kernel_picks()


def test_a_port_is_passed_over_if_a_service_listens_on_one_after_it() -> None:
    taken = ports.free_port()
    with socket.create_server(("127.0.0.1", taken + ports.APART - 1)):
        found = {ports.free_port() for _ in range(ports.BLOCK)}
    assert taken not in found
    assert taken in {ports.free_port() for _ in range(ports.BLOCK)}

"""Runs `signalbox` commands as a user does, as processes; and those of a client in this process."""

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

import psutil

from signalbox import cli
from signalbox_kernels.native import ISA_VARIABLE
from signalbox_rpc.lifetime.parent import PARENT_PID
from tests.ports import free_port
from tests.waiting import EVENT_S, wait_until

COMMAND = [sys.executable, "-m", "signalbox"]


def signalbox(*arguments: str, timeout_s: float = EVENT_S) -> subprocess.CompletedProcess[str]:
    """Runs one command to its end."""
    return subprocess.run(
        [*COMMAND, *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        stdin=subprocess.DEVNULL,
        env=environment(),
    )


def run_here(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs one command in this process, without what a process costs to start.

    It is for commands that call a router, and for services that are refused before they start.
    """
    out, errors = io.StringIO(), io.StringIO()
    with (
        mock.patch.dict(os.environ, environment(), clear=True),
        redirect_stdout(out),
        redirect_stderr(errors),
    ):
        try:
            status = cli.main(arguments)
        except SystemExit as ended:
            status = int(ended.code or 0)
    return subprocess.CompletedProcess(arguments, status, out.getvalue(), errors.getvalue())


def environment() -> dict[str, str]:
    """Ours without settings; the instruction set is that of the whole run."""
    inherited = {
        key: v
        for key, v in os.environ.items()
        if key == ISA_VARIABLE or not key.startswith("SIGNALBOX_")
    }
    return {**inherited, "OMP_NUM_THREADS": "1"}


def of_service() -> dict[str, str]:
    """`environment()` of a command that ends with this process, also if this one is killed."""
    return environment() | {PARENT_PID: str(os.getpid())}


@dataclass
class Stack:
    """A running `signalbox serve`."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def address(self) -> str:
        """Where the router is, by the last line of the start."""
        found = re.search(r"at (\S+) \(for --router\)", self.log.read_text())
        assert found is not None
        return found[1]

    def children(self) -> dict[str, psutil.Process]:
        """The services' processes, by command; of several workers one."""
        children = psutil.Process(self.process.pid).children()
        return {child.cmdline()[1]: child for child in children}

    def http_url(self) -> str:
        """Where the HTTP API is."""
        found = re.search(r"and (https?://\S+/v1); Ctrl-C", self.log.read_text())
        assert found is not None
        return found[1]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.process.wait(timeout=EVENT_S)


@contextmanager
def serve(
    log: Path,
    *arguments: str,
    variables: Mapping[str, str] | None = None,
    chooses_port: bool = False,
) -> Iterator[Stack]:
    """Yields a stack that serves. Whatever is left of it afterwards fails the test.

    Args:
        chooses_port: gives no --grpc-port.
    """
    port = [] if chooses_port else ["--grpc-port", str(free_port())]
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*COMMAND, "serve", *port, "--http-port", "0", *arguments],
            stderr=sink,
            env=of_service() | dict(variables or {}),
        )
    stack = Stack(process, log)
    children: list[psutil.Process] = []
    try:
        _wait_for(stack)
        children = psutil.Process(process.pid).children(recursive=True)
        yield stack
    finally:
        if process.poll() is None:
            stack.stop()
        _, alive = psutil.wait_procs(children, timeout=EVENT_S)
        for child in alive:
            child.kill()
    assert not alive, f"left behind: {alive}"


def _wait_for(stack: Stack) -> None:
    def serves() -> bool:
        assert stack.process.poll() is None, stack.log.read_text()
        return "Ctrl-C stops" in stack.log.read_text()

    wait_until(serves, told=stack.log.read_text)

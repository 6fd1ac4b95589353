"""Runs the blocks of one page as a reader does: in one folder, one after the other."""

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.blocks import ROOT, Block
from tests.ports import free_port
from tests.signalbox.stacks import environment
from tests.waiting import EVENT_S, wait_until

LINKED = ("models", "clients", "deploy", "protos")
"""Folders of a clone that commands name."""
BLOCK_TIMEOUT_S = EVENT_S
PORTS = (50051, 8000, 9464, 50061, 50071, 8010)
"""Ports that pages name, those of schedulers apart."""
_SCHEDULERS = (50052, 50062)
"""Ports of the schedulers of `serve`, each behind that of its router."""
_SERVICE = """
exec 3<&0 < /dev/null
(read -r <&3; kill -TERM 0) &
exec 3<&-
exec bash -e -c "$1"
"""
"""Runs commands until their end, or that of standard input, which ends with this process."""


class Session:
    """A folder, ports of its own, and the services that blocks have started.

    Ports that a page names are replaced with free ones, because others may use them here.
    """

    def __init__(self, folder: Path, ports: Mapping[int, int] | None = None) -> None:
        """`ports` are those of a session whose services this one uses."""
        self.folder = folder
        self._services: list[subprocess.Popen[bytes]] = []
        self.ports = dict(ports or {port: free_port() for port in PORTS})
        """The port that stands for each one of a page."""
        for port in _SCHEDULERS:
            self.ports[port] = self.ports[port - 1] + 1
        for name in LINKED:
            (folder / name).symlink_to(ROOT / name)
        self._bin = folder / ".bin"
        self._bin.mkdir()
        for name, module in (("signalbox", "-m signalbox"), ("python", "")):
            shim = self._bin / name
            shim.write_text(f'#!/bin/sh\nexec {sys.executable} {module} "$@"\n')
            shim.chmod(0o755)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for service in self._services:
            assert service.stdin is not None
            service.stdin.close()
            service.wait(timeout=BLOCK_TIMEOUT_S)

    def run(self, block: Block) -> None:
        """Runs a block; raises AssertionError with its output if it fails."""
        if block.mark == "service":
            self._serve(block)
            return
        text = self._in_these_ports(block.text)
        if block.language == "python":
            command = [sys.executable, "-c", text]
        else:
            command = ["bash", "-e", "-u", "-o", "pipefail", "-c", text]
        done = subprocess.run(
            command,
            cwd=self.folder,
            env=self._environment(),
            input="Hello\n",
            capture_output=True,
            text=True,
            timeout=BLOCK_TIMEOUT_S,
        )
        assert done.returncode == 0, f"{block} ended with {done.returncode}\n{done.stderr}"

    def _serve(self, block: Block) -> None:
        log = self.folder / f"service-{block.line}.log"
        text = self._in_these_ports(block.text)
        with log.open("wb") as output:
            service = subprocess.Popen(
                ["bash", "-c", _SERVICE, "bash", text],
                cwd=self.folder,
                env=self._environment(),
                stdout=output,
                stderr=output,
                stdin=subprocess.PIPE,
                start_new_session=True,
            )
        self._services.append(service)

        def serves() -> bool:
            assert service.poll() is None, f"{block} has ended\n{log.read_text()}"
            told = log.read_bytes()
            of_router = told.count(b"through the scheduler at")
            return b"Ctrl-C stops" in told or 0 < _num_models(text) == of_router

        wait_until(serves, told=lambda: f"{block} does not serve\n{log.read_text()}")

    def _in_these_ports(self, text: str) -> str:
        known = "|".join(map(str, self.ports))
        return re.sub(rf"\b({known})\b", lambda it: str(self.ports[int(it[0])]), text)

    def _environment(self) -> dict[str, str]:
        ours = {
            "PATH": f"{self._bin}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(sys.path),
            "SIGNALBOX_GRPC_PORT": str(self.ports[50051]),
            "SIGNALBOX_HTTP_PORT": str(self.ports[8000]),
            "SIGNALBOX_ROUTER": f"127.0.0.1:{self.ports[50051]}",
            "SIGNALBOX_SCHEDULER": f"127.0.0.1:{self.ports[50052]}",
        }
        return {**environment(), **ours}


def _num_models(command: str) -> int:
    """Returns how many schedulers a `signalbox router` names, each of which serves a model."""
    named = re.search(r"signalbox router .*--scheduler (\S+)", command)
    return named[1].count(",") + 1 if named else 0

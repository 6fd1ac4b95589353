"""A Ray actor that holds a rank's resources, and runs the rank as a process of its own.

What ranks say to each other never goes through Ray: the process is a `signalbox worker` that finds
the others by the variables that torchrun would set.
"""

import os
import subprocess
import sys
from collections.abc import Mapping

from gpu_worker.ranks.rank_network import own_name
from rpc.transport.tls import TlsConfig
from signalbox.stack.child_processes import PARENT_PID


class RankActor:
    """Starts one process; calls run on several threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def certified_name(self, tls: TlsConfig) -> str:
        """Returns what the certificate on this node is for, as `own_name` does. Raises OSError."""
        return own_name(tls)

    def run(self, arguments: list[str], variables: Mapping[str, str]) -> int:
        """Runs `signalbox` with these arguments; returns its exit status."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "signalbox", *arguments],
            env={**os.environ, **variables, PARENT_PID: str(os.getpid())},  # it ends with this one
            stdin=subprocess.DEVNULL,
        )
        return self._process.wait()

    def send(self, number: int) -> None:
        """Sends a signal to the process."""
        if self._process is not None:
            self._process.send_signal(number)

"""A Ray actor that holds a rank's resources, and runs the rank as a process of its own.

What ranks say to each other never goes through Ray: the process is a `signalbox worker` that finds
the others by the variables that torchrun would set.
"""

import os
import subprocess
import sys
import threading
from collections.abc import Mapping

from signalbox_rpc.lifetime.parent import PARENT_PID
from signalbox_rpc.lifetime.stop_signals import stopping_later
from signalbox_rpc.transport.tls import TlsConfig
from signalbox_worker.runner.ranks.rank_network import own_name


class RankActor:
    """Starts one process; calls run on several threads."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._signal: int | None = None
        """Signal for a process that has not started."""

    def certified_name(self, tls: TlsConfig) -> str:
        """Returns what the certificate on this node is for, as `own_name` does. Raises OSError."""
        return own_name(tls)

    def run(self, arguments: list[str], variables: Mapping[str, str]) -> int:
        """Runs `signalbox` with these arguments; returns its exit status."""
        with stopping_later(), self._lock:  # until the process can act on signals
            self._process = subprocess.Popen(
                [sys.executable, "-m", "signalbox", *arguments],
                env={**os.environ, **variables, PARENT_PID: str(os.getpid())},
                stdin=subprocess.DEVNULL,
            )
            if self._signal is not None:
                self._process.send_signal(self._signal)
        return self._process.wait()

    def send(self, number: int) -> None:
        """Sends a signal to the process, or to the one that will start."""
        with self._lock:
            self._signal = number
            if self._process is not None:
                self._process.send_signal(number)

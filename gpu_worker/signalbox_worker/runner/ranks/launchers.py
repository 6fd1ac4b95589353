"""Starts the ranks of a worker: as processes of this machine, or waits for what others start.

A launcher starts and ends ranks, and says where rank 0 listens; what ranks say to each other never
goes through it.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

from signalbox_rpc.lifetime import parent
from signalbox_rpc.lifetime.private_folder import PrivateFolder
from signalbox_rpc.lifetime.stop_signals import stopping_later
from signalbox_rpc.transport.tls import CLEAR, TlsConfig
from signalbox_worker.runner.ranks.rank_network import JOIN_S, RankNetwork

_END_S = 5.0
"""Seconds for a rank whose stream has ended to end itself, on a machine that is busy."""
_LOOK_S = 0.5
_NUM_LOOKS = 5


class StartedRank(Protocol):
    """A rank that a launcher has started."""

    def wait(self) -> None:
        """Returns when the rank has ended, or stands still."""
        ...

    def kill(self) -> None: ...

    def end(self, *, within_s: float) -> None:
        """Waits until the rank ends by itself; kills it if that takes long."""
        ...

    def how_it_ended(self) -> str: ...


class RankLauncher(Protocol):
    """Starts ranks, and has the address at which they join rank 0."""

    address: str
    tls: TlsConfig
    join_s: float
    """Seconds for all ranks to join."""
    are_placed: bool
    """True if others start the ranks."""

    def start(self, rank: int) -> StartedRank: ...

    def close(self) -> None:
        """Removes what the ranks met in; more than once, on any thread."""
        ...


class LocalRank:
    """A process of this machine, which ends with this one."""

    def __init__(self, rank: int, address: str) -> None:
        module = "signalbox_worker.runner.ranks.follower_process"
        with stopping_later():
            self._process = subprocess.Popen(
                [sys.executable, "-m", parent.__name__, module, str(rank), address],
                env=os.environ | {parent.PARENT_PID: str(os.getpid())},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    def wait(self) -> None:
        """Returns once the process has been stopped in several looks.

        A pause of this process, too, costs one look alone.
        """
        num_stopped = 0
        while num_stopped < _NUM_LOOKS:
            try:
                self._process.wait(_LOOK_S)
                return
            except subprocess.TimeoutExpired:
                num_stopped = num_stopped + 1 if _is_stopped(self._process.pid) else 0

    def kill(self) -> None:
        self._process.kill()

    def end(self, *, within_s: float) -> None:
        try:
            self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def how_it_ended(self) -> str:
        gives_up_at = time.monotonic() + _END_S
        while True:
            try:
                code = self._process.wait(_LOOK_S)
                break
            except subprocess.TimeoutExpired:
                if _is_stopped(self._process.pid) or time.monotonic() > gives_up_at:
                    return "no longer answers"
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"


def _is_stopped(pid: int) -> bool:
    """Returns whether a signal or a debugger has stopped a process; Linux says it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state in "Tt"


class AwaitedRank:
    """A rank that torchrun, Slurm or a LeaderWorkerSet starts, and that ends with its stream."""

    def __init__(self) -> None:
        self._is_given_up = threading.Event()

    def wait(self) -> None:
        self._is_given_up.wait()

    def kill(self) -> None:
        self._is_given_up.set()

    def end(self, *, within_s: float) -> None:
        self._is_given_up.set()

    def how_it_ended(self) -> str:
        return "has ended, or no longer answers"


class LocalRanks:
    """Starts ranks on this machine, which talk over sockets in a folder for this user alone."""

    tls = CLEAR
    are_placed = False

    def __init__(self, start: Callable[[int, str], StartedRank] = LocalRank) -> None:
        """Args: start: starts the rank of a number, which joins rank 0 at an address."""
        self._start, self._folder = start, PrivateFolder("ranks")
        self.address, self.join_s = f"unix:{self._folder.path}/0", JOIN_S

    def start(self, rank: int) -> StartedRank:
        return self._start(rank, self.address)

    def close(self) -> None:
        self._folder.close()


class AwaitedRanks:
    """Waits for ranks that others start."""

    are_placed = True

    def __init__(self, network: RankNetwork, *, join_s: float = 5 * JOIN_S) -> None:
        """Args: network: that of rank 0."""
        self.address, self.tls, self.join_s = network.address, network.tls, join_s

    def start(self, rank: int) -> StartedRank:
        return AwaitedRank()

    def close(self) -> None: ...

"""A system under test: a process tree that is started, asked, frozen between turns and ended.

The cores are shared, so only one tree may run at a time. One that starts in seconds is ended after
its turn; one that takes a minute is stopped by SIGSTOP instead, and goes on later.
"""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import ClassVar

import psutil

from benchmarks.harness.process_usage import Usage, tree, usage_of
from signalbox.bench.http_stream import HttpAddress, HttpStatusError, get
from signalbox.stack.stack_addresses import free_port

HOST = "127.0.0.1"
READY_TIMEOUT_S = 600.0
END_TIMEOUT_S = 20.0
_POLL_S = 0.05
_LOG_TAIL_BYTES = 2000


class PeerUnavailable(Exception):
    """A peer is not installed, or did not start; says why in one line."""


class FoundInCache(Exception):
    """Tokens of prompts were in a prefix cache that were to be computed."""


def exit_on_sigterm() -> None:
    """Lets SIGTERM raise SystemExit, so that every server is ended on the way out."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


class PeerProcess(ABC):
    """One participant: `start` before each turn, `rest` after it, `stop` at the end."""

    name: str
    freezes: ClassVar[bool] = False
    """True if it starts so slowly that it is frozen between turns instead of ended."""

    def __init__(
        self, *, log_folder: Path, extra_arguments: Sequence[str] = (), label: str = ""
    ) -> None:
        """`label` is added to the name, of a participant in another setting."""
        self.name = f"{self.name}, {label}" if label else self.name
        self.extra_arguments = tuple(extra_arguments)
        self.port = 0
        self.start_to_ready_s = float("nan")
        """Seconds that the last call of `start` took; NaN if it was not started then."""
        self.note = ""
        """Note for readers of its figures."""
        self._log_path = log_folder / f"{re.sub('[^a-zA-Z0-9]+', '-', self.name)}.log"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Process id of the root of the tree, which must have been started."""
        assert self._process is not None, "it must have been started"
        return self._process.pid

    @abstractmethod
    def command(self) -> list[str]:
        """Returns the command line that listens on `self.port`. Raises PeerUnavailable."""

    @abstractmethod
    async def is_ready(self) -> bool:
        """Returns whether it would serve now."""

    def environment(self) -> dict[str, str]:
        """Returns the environment variables of the process, beside our own."""
        return {}

    def build(self) -> str:
        """Returns its version and the instruction sets of its build, for readers of its figures."""
        return ""

    def process_name(self, process: psutil.Process) -> str:
        """Returns the name under which the CPU time of a process of its tree is listed."""
        return process.name()

    async def start(self) -> None:
        """Starts it, or lets it go on, and returns when it serves. Raises PeerUnavailable."""
        self.start_to_ready_s = float("nan")
        if self._process is not None:
            self._signal_all(signal.SIGCONT)
            await self._until_ready()
            return
        self.port = free_port()
        command = self.command()
        started = time.perf_counter()
        with self._log_path.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 (nothing else runs here yet)
                command,
                env=os.environ | self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        await self._until_ready()
        self.start_to_ready_s = time.perf_counter() - started

    def rest(self) -> None:
        """Takes it off the cores until its next turn."""
        if self.freezes:
            self._signal_all(signal.SIGSTOP)
        else:
            self.stop()

    def stop(self) -> None:
        """Ends all of it."""
        if self._process is None:
            return
        processes = tree(self._process.pid)
        self._signal_all(signal.SIGCONT)
        self._process.terminate()
        _, alive = psutil.wait_procs(processes, timeout=END_TIMEOUT_S)
        for process in alive:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self._process.wait()
        self._process = None

    def usage(self) -> Usage:
        """CPU and memory of all of it, by process."""
        return usage_of(self.pid, self.process_name) if self._process else Usage()

    def _signal_all(self, number: signal.Signals) -> None:
        if self._process is not None:
            for process in tree(self._process.pid):
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(number)

    async def _until_ready(self) -> None:
        assert self._process is not None
        ends_at = time.monotonic() + READY_TIMEOUT_S
        while not await self.is_ready():
            if (status := self._process.poll()) is not None:
                self._process = None
                raise PeerUnavailable(f"ended with status {status}: {self._last_words()}")
            if time.monotonic() > ends_at:
                self.stop()
                raise PeerUnavailable(f"not ready within {READY_TIMEOUT_S:.0f} s")
            await asyncio.sleep(_POLL_S)

    def _last_words(self) -> str:
        lines = self._log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "nothing said")


def existing(path: Path) -> Path:
    """Raises PeerUnavailable if a peer's file is not there."""
    if not path.exists():
        raise PeerUnavailable(f"not installed: no {path.name} in {path.parent}")
    return path


class ServerProcess(PeerProcess):
    """A participant that serves requests."""

    num_found: int | None = None
    """Prompt tokens that it has said it found in its prefix cache; None if it has said nothing."""
    num_drafts = 0
    """Drafts that it has said it computed for all answers."""
    num_accepted = 0

    def add_found(self, num_tokens: int) -> None:
        """Notes what it says about a prompt."""
        self.num_found = (self.num_found or 0) + num_tokens

    def add_drafts(self, num_computed: int, num_accepted: int) -> None:
        """Notes what it says about drafts of an answer."""
        self.num_drafts += num_computed
        self.num_accepted += num_accepted

    @abstractmethod
    def stream(self, token_ids: list[int], *, max_tokens: int) -> AsyncIterator[int]:
        """Sends one request; yields how many tokens each message brings."""

    def beams(self, token_ids: list[int], *, max_tokens: int, width: int) -> AsyncIterator[int]:
        """The same for beam search, all of the hypotheses. Raises PeerUnavailable."""
        raise PeerUnavailable("serves no beam search")


@contextmanager
def finding_nothing(server: ServerProcess) -> Iterator[None]:
    """Raises FoundInCache at its end if the server has said meanwhile that it found something."""
    server.num_found = None
    yield
    if server.num_found:
        raise FoundInCache(f"{server.num_found} prompt tokens were found in its prefix cache")


async def is_healthy(host: str, port: int, *, path: str = "/health") -> bool:
    """Returns whether a GET of `path` is answered with 200."""
    try:
        await get(HttpAddress(host=host, port=port), path, as_json=False)
    except (OSError, HttpStatusError, asyncio.IncompleteReadError, ValueError):
        return False
    return True

"""Child processes that end with their parent in every case."""

import asyncio
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

from signalbox.settings.environment import CHILD_VARIABLES, ENV_PREFIX, VLLM_PREFIX
from signalbox_kernels.native import ISA_VARIABLE

PARENT_PID, PROCESS_NAME, NEWS_FD = (ENV_PREFIX + name for name in CHILD_VARIABLES)

SERVING, STARTING = "serving", "starting"
"""Kinds of a child's announcements: with the model's name, and with a phase and its progress."""

_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running `signalbox` command."""

    name: str
    process: asyncio.subprocess.Process
    news: asyncio.StreamReader
    """Announcements of the child, one line each with kind and text; see `announce`. They must be
    read until the end."""

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    @property
    def ending(self) -> str:
        """Words for how the process has ended, such as "exited with status 1"."""
        code = self.process.returncode or 0
        if code < 0:
            return f"was killed by {signal.Signals(-code).name}"
        return f"exited with status {code}"

    async def end(self, *, within_s: float) -> None:
        """Asks the process to stop and waits; kills it if it takes longer."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await self.process.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.process.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        if self.is_alive:
            # Not through `process`, which would take the status of an ended one from asyncio.
            with suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


async def spawn(
    name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Child:
    """Starts `signalbox ARGUMENTS` with settings only from its flags, and a part of the
    environment.

    It gets a session of its own, so that Ctrl-C reaches only the parent, which ends children in
    order.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key == ISA_VARIABLE or not key.startswith((ENV_PREFIX, VLLM_PREFIX))
    }
    readable, writable = os.pipe()
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "signalbox",
        *arguments,
        env={
            **inherited,
            **(environment or {}),
            PARENT_PID: str(os.getpid()),
            PROCESS_NAME: name,
            NEWS_FD: str(writable),
        },
        pass_fds=(writable,),
        stdin=asyncio.subprocess.DEVNULL,
        start_new_session=True,
    )
    os.close(writable)
    return Child(name=name, process=process, news=await _reader(readable))


async def _reader(readable: int) -> asyncio.StreamReader:
    reader = asyncio.StreamReader()
    protocol = asyncio.StreamReaderProtocol(reader)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: protocol, os.fdopen(readable, "rb"))
    return reader


@cache
def _news_pipe() -> int | None:
    """Returns the end of the pipe that the parent reads, in a child."""
    writable = os.environ.pop(NEWS_FD, "")
    if not writable:
        return None
    os.set_inheritable(int(writable), False)
    return int(writable)


def has_listener() -> bool:
    """Returns whether a parent reads what this process announces."""
    return _news_pipe() is not None


def announce(kind: str, text: str) -> None:
    """Sends the parent one line, in a child on any thread; the parent reads it from
    `Child.news`.

    So the parent knows that the child serves without a client's certificate or key.
    """
    pipe = _news_pipe()
    if pipe is not None:
        with suppress(BrokenPipeError):
            os.write(pipe, f"{kind} {text}\n".encode())


def process_name(default: str) -> str:
    """Returns the name that the parent gave this process."""
    return os.environ.get(PROCESS_NAME, default)


def end_with_parent() -> None:
    """Makes this process end with its parent; to be called first in a child."""
    parent_pid = int(os.environ.pop(PARENT_PID, "0"))
    if not parent_pid:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # the parent ended before the signal was set
        os._exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)

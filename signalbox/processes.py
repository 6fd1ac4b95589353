"""Child processes that never outlive their parent, whatever ends it."""

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

from signalbox.environment import ENV_PREFIX
from signalbox_kernels.native import ISA_VARIABLE

PARENT_PID = ENV_PREFIX + "PARENT_PID"
PROCESS_NAME = ENV_PREFIX + "PROCESS_NAME"
READY_FD = ENV_PREFIX + "READY_FD"

_PR_SET_PDEATHSIG = 1
_PARENT_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running `signalbox` command."""

    name: str
    process: asyncio.subprocess.Process
    news: asyncio.StreamReader
    """What it announces; see `announce`."""

    @property
    def is_alive(self) -> bool:
        return self.process.returncode is None

    async def end(self, *, within_s: float) -> None:
        """Asks it to stop and waits; kills it when it takes longer."""
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
            with suppress(ProcessLookupError):
                self.process.send_signal(number)


async def spawn(
    name: str, arguments: Sequence[str], environment: Mapping[str, str] | None = None
) -> Child:
    """Starts `signalbox ARGUMENTS` with settings from its flags alone, and some of its environment.

    It gets a session of its own, so that Ctrl-C reaches the parent, which ends children in order.
    """
    inherited = {
        key: value
        for key, value in os.environ.items()
        if key == ISA_VARIABLE or not key.startswith(ENV_PREFIX)
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
            READY_FD: str(writable),
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


def announce(text: str) -> None:
    """Called in a child: tells the parent one line, once; it reads `Child.news`.

    It knows then that the child serves without a client's certificate or key.
    """
    if writable := os.environ.pop(READY_FD, ""):
        with suppress(BrokenPipeError), os.fdopen(int(writable), "w") as pipe:
            pipe.write(text + "\n")


def process_name(default: str) -> str:
    """Returns the name that the parent gave this process."""
    return os.environ.get(PROCESS_NAME, default)


def end_with_parent() -> None:
    """Called first thing in a child: arranges that it is killed when its parent ends."""
    parent_pid = int(os.environ.pop(PARENT_PID, "0"))
    if not parent_pid:
        return
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    else:
        threading.Thread(target=_watch, args=(parent_pid,), daemon=True).start()
    if os.getppid() != parent_pid:  # it ended before we could arrange anything
        os._exit(1)


def _watch(parent_pid: int) -> None:
    while os.getppid() == parent_pid:
        time.sleep(_PARENT_POLL_S)
    os._exit(1)

"""Child processes that end with their parent in every case.

A child is forked where the parent may be copied, so that it need not import again what the parent
has imported; otherwise its program is started anew. Either way it has a session of its own, so that
Ctrl-C reaches only the parent, which ends children in order; settings only from its arguments and a
part of the environment; no input; and none of the parent's files but standard output and error.
"""

import asyncio
import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, partial
from importlib import import_module
from pathlib import Path
from typing import NamedTuple

from signalbox.settings.environment import (
    ENV_PREFIX,
    ISA_VARIABLE,
    NEWS_FD,
    PROCESS_NAME,
    VLLM_PREFIX,
)
from signalbox_rpc.lifetime.parent import PARENT_PID, is_watched
from signalbox_rpc.lifetime.stop_signals import stopping_later

SERVING, STARTING, WAITING = "serving", "starting", "waiting"
"""Kinds of a child's announcements: with the model's name, with a phase and its progress, and with
what the child waits for, which is nothing at the end of the wait."""

_PROGRAM = "signalbox"
_ARG_START, _ARG_END = 45, 46
"""Places in /proc/PID/stat, counted from the state, of the memory that holds the arguments."""


class Started(NamedTuple):
    """A process that no event loop watches yet."""

    name: str
    pid: int
    news: int
    """File descriptor that the announcements are read from."""
    wait: Callable[[], int]
    """Takes the exit status, or the negative number of a signal, of the process when it ends."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """A running `signalbox` command that this event loop watches."""

    name: str
    pid: int
    news: asyncio.StreamReader
    """Announcements of the child, one line each with kind and text; see `announce`. They must be
    read until the end."""
    ended: asyncio.Future[int]
    """The exit status, or the negative number of a signal."""

    @property
    def is_alive(self) -> bool:
        return not self.ended.done()

    @property
    def ending(self) -> str:
        """Words for how the process has ended, such as "was killed by SIGTERM"."""
        code = self.ended.result()
        if code < 0:
            memory = ", as the system does where memory is short" if code == -signal.SIGKILL else ""
            return f"was killed by {signal.Signals(-code).name}{memory}"
        return f"exited with status {code}"

    async def wait(self) -> int:
        """Returns the exit status once the process has ended."""
        return await asyncio.shield(self.ended)

    async def end(self, *, within_s: float) -> None:
        """Asks the process to stop and waits; kills it if it takes longer."""
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(within_s):
                await self.wait()
        except TimeoutError:
            self.send(signal.SIGKILL)
            await self.wait()

    def send(self, number: signal.Signals) -> None:
        """Sends a signal, unless it has ended."""
        if self.is_alive:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def start(
    name: str,
    arguments: Sequence[str],
    environment: Mapping[str, str] | None = None,
    *,
    fork: bool = False,
) -> Started:
    """Starts `signalbox ARGUMENTS` with a part of this process's environment, and more.

    Args:
        fork: copies this process, as `may_fork` has permitted; no event loop may run. Callers let
            the SystemExit pass that ends the copy.
    """
    readable, writable = os.pipe()
    own = {PARENT_PID: str(os.getpid()), PROCESS_NAME: name, NEWS_FD: str(writable)}
    variables = _inherited() | dict(environment or {}) | own
    if fork:
        pid = os.fork()
        if not pid:
            _become(name, arguments, variables, keep=writable)
            sys.exit(import_module(f"{_PROGRAM}.__main__").main())
        started = Started(name, pid, readable, partial(_status, pid))
    else:
        with stopping_later():  # until the program can act on it
            process = subprocess.Popen(
                [sys.executable, "-m", _PROGRAM, *arguments],
                env=variables,
                pass_fds=(writable,),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        started = Started(name, process.pid, readable, process.wait)
    os.close(writable)
    return started


def _inherited() -> dict[str, str]:
    """Returns this process's environment without settings, which are passed as arguments."""
    return {
        key: value
        for key, value in os.environ.items()
        if key == ISA_VARIABLE or not key.startswith((ENV_PREFIX, VLLM_PREFIX))
    }


async def watch(started: Started) -> Child:
    """Watches a process from this event loop."""
    loop = asyncio.get_running_loop()
    news, ended = asyncio.StreamReader(), loop.create_future()
    await loop.connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(news), os.fdopen(started.news, "rb")
    )

    def reap() -> None:
        ended.set_result(started.wait())

    def wait() -> None:
        # The status is taken in the loop, so that until `ended` is known the pid is no other's.
        os.waitid(os.P_PID, started.pid, os.WEXITED | os.WNOWAIT)
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(reap)

    threading.Thread(target=wait, name=f"waits for {started.name}", daemon=True).start()
    return Child(name=started.name, pid=started.pid, news=news, ended=ended)


def may_fork() -> bool:
    """Returns whether a copy of this process can go on: it would lack all threads but one, and
    the one that watches the parent.

    To be asked before numpy is imported. Its BLAS starts threads, but ends them before a fork.
    gRPC starts some with its first channel or server, which no copy can use.
    """
    threads = Path("/proc/self/task")
    return threads.is_dir() and len([*threads.iterdir()]) == 1 + is_watched()


def _status(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def _become(
    name: str, arguments: Sequence[str], variables: Mapping[str, str], *, keep: int
) -> None:
    """Gives a forked process the state of a program that starts; `keep` is the file it keeps."""
    os.setsid()
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    for number in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if number > 2 and number != keep:
            with suppress(OSError):  # the one that listed the folder
                os.close(number)
    sys.argv[1:] = arguments
    os.environ.clear()
    os.environ.update(variables)
    logging.getLogger().handlers.clear()
    _show_as(name)


def _show_as(name: str) -> None:
    """Makes `ps` and `top` show a forked process by its name, as far as there is room."""
    with suppress(OSError):  # not every sandbox permits it
        Path("/proc/self/comm").write_text(name, encoding="ascii")
    fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    first, end = int(fields[_ARG_START]), int(fields[_ARG_END])
    if first:  # 0 is unknown
        words = "\0".join([_PROGRAM, *name.split()]).encode()
        ctypes.memmove(first, words[: end - first - 1].ljust(end - first, b"\0"), end - first)


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

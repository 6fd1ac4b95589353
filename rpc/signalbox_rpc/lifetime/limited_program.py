"""Runs `main` of a module as a process with limits that the kernel enforces, for one client's work.

`command` makes the command line. The process is isolated from the environment and imports what its
parent would, after the standard library; the limits begin once the module is imported. It writes no
file and leaves no core, and Ctrl-C in a terminal is its parent's alone. It ends with its parent: a
module that reads its input ends when the input does, and the system ends one that reads none. This
file is the process's program and imports nothing of ours.
"""

import fcntl
import json
import math
import os
import resource
import select
import signal
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

_GRACE_S = 1
"""CPU seconds after which the system kills a process that the signal has not ended."""


class ProgramLimits(NamedTuple):
    """Limits of one process; None is no limit."""

    cpu_s: int | None = None
    """CPU seconds, those of the start included; then SIGXCPU ends the process."""
    memory_bytes: int | None = None
    """Bytes of address space."""
    ends_with_input: bool = False
    """True ends the process when its standard input, a pipe that it does not read, is closed."""


NO_LIMITS = ProgramLimits()


def command(module: str, *arguments: str, limits: ProgramLimits = NO_LIMITS) -> list[str]:
    """Returns the command that runs a module within limits."""
    path = [str(folder) or str(Path.cwd()) for folder in sys.path]
    settings = json.dumps({"path": path, "limits": limits._asdict()})
    return [sys.executable, "-I", __file__, settings, module, *arguments]


def limit_job(*, cpu_s: float, memory_bytes: int) -> None:
    """Limits what this process takes from now until the next call; for processes of many jobs.

    Raises nothing: the system ends the process, or refuses it memory.
    """
    usage = resource.getrusage(resource.RUSAGE_SELF)
    _set_limits(resource.RLIMIT_CPU, math.ceil(usage.ru_utime + usage.ru_stime + cpu_s))
    num_pages = int(Path("/proc/self/statm").read_text("ascii").split()[0])
    _set_limits(resource.RLIMIT_AS, num_pages * resource.getpagesize() + memory_bytes)


def _set_limits(kind: int, soft: int, hard: int | None = None) -> None:
    """Sets the limits of a resource; no hard limit leaves the one that this process has.

    A lower hard limit that the process was started with stays, since only root may raise it.
    """
    most = resource.getrlimit(kind)[1]
    hard = most if hard is None else hard
    if most != resource.RLIM_INFINITY:
        soft, hard = min(soft, most), min(hard, most)
    resource.setrlimit(kind, (soft, hard))


def _limit_process(limits: ProgramLimits) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    if limits.memory_bytes is not None:
        _set_limits(resource.RLIMIT_AS, limits.memory_bytes, limits.memory_bytes)
    if limits.cpu_s is not None:
        _set_limits(resource.RLIMIT_CPU, limits.cpu_s, limits.cpu_s + _GRACE_S)
    if limits.ends_with_input:
        _end_with_input()


def _end_with_input() -> None:
    """Has Linux end this process by SIGIO when the parent, and with it the pipe, is gone."""
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([0], [], [], 0)[0]:  # it is gone already
        os._exit(1)


def main() -> None:
    """Runs the module that the command line names; its arguments are what is left of it."""
    settings: dict[str, Any] = json.loads(sys.argv.pop(1))
    library = str(Path(os.__file__).parent)
    sys.path[:] = [library, f"{library}/lib-dynload", *settings["path"]]
    module = import_module(sys.argv.pop(1))
    _limit_process(ProgramLimits(**settings["limits"]))
    module.main()


if __name__ == "__main__":
    main()

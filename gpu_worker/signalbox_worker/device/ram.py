"""Measures the free RAM of the machine or container, in bytes. Does not import PyTorch."""

import os
import resource
from pathlib import Path

from signalbox_worker.device import cgroups

_MEMORY = Path("/proc/meminfo")
_STATUS = Path("/proc/self/status")
_droppable_bytes = 0


def available_ram() -> int:
    """Returns free RAM in bytes: the machine's, or what is left up to a limit if that is less: of a
    control group, or of this process (`ulimit -v`, `ulimit -d`).

    Pages of files that this process has mapped, as packed weights may be, are in use, but for those
    of `let_drop`.
    """
    mapped = procfs_bytes("RssFile", _STATUS)
    dropped = min(mapped, _droppable_bytes)
    free = max(0, _machine_available() - (mapped - dropped))
    left = cgroups.memory_left()
    return min(free, *_left_of_process(), free if left is None else left + dropped)


def let_drop(num_bytes: int) -> None:
    """Counts so many bytes of mapped files as free: the system may drop what no step reads."""
    global _droppable_bytes  # of the process, as its mapped files are
    _droppable_bytes += num_bytes


def _left_of_process() -> list[int]:
    """Returns the bytes up to each limit of this process."""
    limits = ((resource.RLIMIT_AS, "VmSize"), (resource.RLIMIT_DATA, "VmData"))
    found = [(resource.getrlimit(limit)[0], name) for limit, name in limits]
    return [
        max(0, limit - procfs_bytes(name, _STATUS))
        for limit, name in found
        if limit != resource.RLIM_INFINITY
    ]


def _machine_available() -> int:
    free = procfs_bytes("MemAvailable", _MEMORY)
    # Without procfs nothing says what is free: count on half of what there is.
    return free or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def procfs_bytes(name: str, file: Path) -> int:
    """Reads a procfs line such as "VmRSS:  1234 kB", in bytes; 0 where there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0

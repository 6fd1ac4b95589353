"""What a service's process uses, its children included, as the kernel counts it."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

MIB = 1 << 20
SETTLE_S = 30.0
"""Seconds that memory is given to go back after an attack."""
STEADY_S = 1.0
STEADY_BYTES = MIB
"""Memory that changes by less than this in `STEADY_S` has settled."""
_POLL_S = 0.1


def _family(pid: int) -> Iterator[int]:
    """Yields a process and all below it; psutil would read every process of the machine."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # it has just ended
            for child in thread.read_text(encoding="ascii").split():
                yield from _family(int(child))


def _field(pid: int, name: str) -> int:
    """Returns a field of /proc/PID/status in bytes; 0 of a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
            if line.startswith(f"{name}:"):
                return int(line.split()[1]) << 10
    return 0


def resident_bytes(pid: int, *, alone: bool = False) -> int:
    """Returns what is resident now, of the process `alone` or with its children."""
    return _total(pid, "VmRSS", alone=alone)


def peak_bytes(pid: int, *, alone: bool = False) -> int:
    """Returns the sum of the processes' peaks since `reset_peak`.

    That is no less than a cgroup's peak of such memory; a page of a file is counted once.
    """
    return _total(pid, "VmHWM", alone=alone)


def _total(pid: int, name: str, *, alone: bool) -> int:
    children = () if alone else [one for one in _family(pid) if one != pid]
    # Libraries are in the router's own pages, too.
    return _field(pid, name) + sum(
        max(0, _field(child, name) - _field(child, "RssFile")) for child in children
    )


def reset_peak(pid: int) -> None:
    """Makes what is resident now the peak (proc(5), clear_refs)."""
    for one in _family(pid):
        Path(f"/proc/{one}/clear_refs").write_text("5", encoding="ascii")


def cpu_seconds(pid: int) -> float:
    """Returns the CPU time of the process and its children, those that have ended included."""
    total = 0
    for one in _family(pid):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{one}/stat").read_text(encoding="ascii").rpartition(")")[2]
            user, system, child_user, child_system = map(int, stat.split()[11:15])
            total += user + system
            total += child_user + child_system if one == pid else 0
    return total / os.sysconf("SC_CLK_TCK")


def settled_bytes(pid: int) -> int:
    """Returns what is resident when it no longer changes, or after `SETTLE_S`."""
    ends = time.monotonic() + SETTLE_S
    since, reference = time.monotonic(), resident_bytes(pid)
    while time.monotonic() < min(ends, since + STEADY_S):
        time.sleep(_POLL_S)
        if abs((now := resident_bytes(pid)) - reference) > STEADY_BYTES:
            since, reference = time.monotonic(), now
    return resident_bytes(pid)


def bytes_within(pid: int, at_most: int) -> int:
    """Returns what is resident once it is no more than `at_most`, or after `SETTLE_S`."""
    ends = time.monotonic() + SETTLE_S
    while (now := resident_bytes(pid)) > at_most and time.monotonic() < ends:
        time.sleep(_POLL_S)
    return now

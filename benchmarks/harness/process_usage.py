"""CPU time and memory of a process and all that it has started, by name.

Both are read from outside, so they are the same measure for us and for any peer.
"""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil


@dataclass(slots=True)
class Usage:
    """Usage of the processes that share a name, summed."""

    cpu_s: dict[str, float] = field(default_factory=dict)
    peak_rss_mib: dict[str, float] = field(default_factory=dict)
    """Sum of each process's own peak; pages that several share count in each."""

    def add(self, name: str, *, cpu_s: float, peak_rss_mib: float) -> None:
        self.cpu_s[name] = self.cpu_s.get(name, 0.0) + cpu_s
        self.peak_rss_mib[name] = self.peak_rss_mib.get(name, 0.0) + peak_rss_mib

    def cpu_s_since(self, before: "Usage") -> dict[str, float]:
        return {name: spent - before.cpu_s.get(name, 0.0) for name, spent in self.cpu_s.items()}


def usage_of(pid: int, name_of: Callable[[psutil.Process], str]) -> Usage:
    """Reads a process tree; processes that end meanwhile are left out."""
    usage = Usage()
    for process in tree(pid):
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            times = process.cpu_times()
            usage.add(
                name_of(process),
                cpu_s=times.user + times.system,
                peak_rss_mib=_peak_rss_mib(process.pid),
            )
    return usage


def tree(pid: int) -> list[psutil.Process]:
    """Returns a process and its descendants; nothing if it has ended."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def _peak_rss_mib(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    return 0.0

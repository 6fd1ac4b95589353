"""Measures the free RAM of the machine or container, in bytes. Does not import PyTorch."""

import os
from pathlib import Path

_CGROUP = Path("/sys/fs/cgroup")
_CGROUP_FILES = (
    ("memory.max", "memory.current", "memory.stat", "inactive_file"),
    (
        "memory/memory.limit_in_bytes",
        "memory/memory.usage_in_bytes",
        "memory/memory.stat",
        "total_inactive_file",
    ),
)
_MEMORY = Path("/proc/meminfo")


def available_ram() -> int:
    """Returns free RAM in bytes: the machine's, or what the container has left if that is less."""
    return min(_machine_available(), _container_available())


def _machine_available() -> int:
    free = procfs_bytes("MemAvailable", _MEMORY)
    # Without procfs nothing says what is free: count on half of what there is.
    return free or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container_available() -> int:
    """Returns the bytes that the cgroup (version 2 or 1) leaves; 2**62 without a limit."""
    for limit_file, used_file, stat_file, cached_name in _CGROUP_FILES:
        try:
            limit = (_CGROUP / limit_file).read_text().strip()
            used = int((_CGROUP / used_file).read_text())
            cached = _cgroup_stat(_CGROUP / stat_file, cached_name)
        except (OSError, ValueError):
            continue
        return 1 << 62 if limit == "max" else max(0, int(limit) - used + cached)
    return 1 << 62


def _cgroup_stat(file: Path, name: str) -> int:
    for line in file.read_text().splitlines():
        key, value = line.split()
        if key == name:
            return int(value)
    return 0


def procfs_bytes(name: str, file: Path) -> int:
    """Reads a procfs line such as "VmRSS:  1234 kB", in bytes; 0 where there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0

"""Reads the limits of the control groups that this process is in, of versions 2 and 1.

A container finds its own group at the mount. A unit of systemd or a job of Slurm finds all groups
of the machine there; /proc/self/cgroup names its own, and those around it limit it, too.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

_MOUNT = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/cgroup")
_UNLIMITED = 1 << 62
"""Version 1 says "no limit" by a number of bytes above it."""
_MEMORY_FILES = (
    ("memory.max", "memory.current", "inactive_file"),
    ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
)


def cpu_quota() -> float | None:
    """Returns for how many cores the CPU time of the groups lasts; None if it is unlimited."""
    quotas = []
    for group in _groups("cpu"):
        time = _read(group / "cpu.max").split() or [
            _read(group / f"cpu.cfs_{name}_us").strip() for name in ("quota", "period")
        ]
        if all(number.isdecimal() and int(number) for number in time):
            quotas.append(int(time[0]) / int(time[1]))
    return min(quotas, default=None)


def memory_limit() -> int | None:
    """Returns the least limit of memory in bytes; None if there is none."""
    return min((limit for limit, _ in _memory()), default=None)


def memory_left() -> int | None:
    """Returns the bytes up to the limits; None if there are none. Cached files count as free."""
    return min((max(0, limit - used) for limit, used in _memory()), default=None)


def _memory() -> Iterator[tuple[int, int]]:
    """Yields each group's limit and what it uses, in bytes."""
    for group in _groups("memory"):
        for limit, used, cached in _MEMORY_FILES:
            numbers = [_read(group / name).strip() for name in (limit, used)]
            if all(number.isdecimal() and int(number) < _UNLIMITED for number in numbers):
                stat = dict(line.split() for line in _read(group / "memory.stat").splitlines())
                yield int(numbers[0]), int(numbers[1]) - int(stat.get(cached, 0))


def _groups(controller: str) -> Iterator[Path]:
    """Yields the folders where groups of this process may have files of a controller."""
    mounts = {"": _MOUNT, controller: _MOUNT / controller}  # of version 2, and of version 1
    yield from mounts.values()
    for line in _read(_OWN).splitlines():
        _, controllers, path = line.split(":", 2)
        parts = PurePosixPath(path).parts[1:]
        mount = next((mounts[name] for name in controllers.split(",") if name in mounts), None)
        if mount is not None and ".." not in parts:  # which is outside of what is mounted
            yield from (mount.joinpath(*parts[:depth]) for depth in range(1, len(parts) + 1))


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""

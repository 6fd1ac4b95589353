"""Measures the memory of processes, each page that several share divided among them (PSS)."""

from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path

from signalbox_worker.device.ram import procfs_bytes

_PROC = Path("/proc")


def memory_of(pids: Iterable[int]) -> int:
    """Returns the bytes that processes and their descendants have in RAM; those that have ended
    have none."""
    return sum(map(_bytes_of, _with_descendants(pids)))


def _with_descendants(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        yield pid
        yield from _with_descendants(_children_of(pid))


def _children_of(pid: int) -> list[int]:
    found: list[int] = []
    for children in (_PROC / str(pid) / "task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            found += map(int, children.read_text(encoding="ascii").split())
    return found


def _bytes_of(pid: int) -> int:
    folder = _PROC / str(pid)
    with suppress(OSError):  # it has ended, or another user's
        return procfs_bytes("Pss", folder / "smaps_rollup") or procfs_bytes(
            "VmRSS", folder / "status"
        )
    return 0

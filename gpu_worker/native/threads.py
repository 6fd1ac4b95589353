"""Counts the threads that a native program runs on unless an option says how many."""

import os
from pathlib import Path

_VARIABLE = "OMP_NUM_THREADS"
"""The usual limit of a process's threads, which PyTorch follows, too."""
_CPUS = Path("/sys/devices/system/cpu")
_CGROUP = Path("/sys/fs/cgroup")
"""Mount of the control groups; a container finds its own group here."""


def default_num_threads(cpus: Path = _CPUS, cgroup: Path = _CGROUP) -> int:
    """Returns how many threads to compute on: as the variable says, else one for each core."""
    told = os.environ.get(_VARIABLE, "").partition(",")[0]
    if told.isdecimal() and int(told):
        return int(told)
    return num_cores(cpus, cgroup)


def num_cores(cpus: Path = _CPUS, cgroup: Path = _CGROUP) -> int:
    """Returns the number of cores that this process may use; two threads of a core share one.

    A container's CPU time counts, too: more threads than it lasts for would all be stopped for the
    rest of each period, and the others would wait for those that hold a tile.
    """
    cores = len({_core_of(cpu, cpus) for cpu in os.sched_getaffinity(0)})
    return max(1, min(cores, _quota(cgroup) or cores))


def _quota(cgroup: Path) -> int | None:
    """Returns for how many cores the CPU time of the group lasts, or None without a limit."""
    try:
        if (unified := cgroup / "cpu.max").exists():
            quota, period = unified.read_text().split()
        else:
            quota = (cgroup / "cpu/cpu.cfs_quota_us").read_text()
            period = (cgroup / "cpu/cpu.cfs_period_us").read_text()
        return -(-int(quota) // int(period)) if int(quota) > 0 else None
    except (OSError, ValueError):  # "max": no limit
        return None


def _core_of(cpu: int, cpus: Path) -> str:
    """Returns what the CPUs of one core have in common."""
    try:
        return (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)  # nothing says that CPUs share a core

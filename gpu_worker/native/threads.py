"""Counts the threads that a native program runs on unless an option says how many."""

import os
from pathlib import Path

_VARIABLE = "OMP_NUM_THREADS"
"""The usual limit of a process's threads, which PyTorch follows, too."""
_CPUS = Path("/sys/devices/system/cpu")


def default_num_threads(cpus: Path = _CPUS) -> int:
    """Returns the number of cores that this process may use; two threads of a core share one."""
    told = os.environ.get(_VARIABLE, "").partition(",")[0]
    if told.isdecimal() and int(told):
        return int(told)
    return len({_core_of(cpu, cpus) for cpu in os.sched_getaffinity(0)})


def _core_of(cpu: int, cpus: Path) -> str:
    """Returns what the CPUs of one core have in common."""
    try:
        return (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)  # nothing says that CPUs share a core

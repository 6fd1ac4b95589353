"""Counts the threads that a native program runs on unless an option says how many."""

import math
import os
from pathlib import Path

from signalbox_worker.device.cgroups import cpu_quota

_VARIABLE = "OMP_NUM_THREADS"
"""The usual limit of a process's threads, which PyTorch follows, too."""
_CPUS = Path("/sys/devices/system/cpu")


def default_num_threads(cpus: Path = _CPUS) -> int:
    """Returns how many threads to compute on: as the variable says, else one for each core."""
    told = os.environ.get(_VARIABLE, "").partition(",")[0]
    if told.isdecimal() and int(told):
        return int(told)
    return num_cores(cpus)


def num_cores(cpus: Path = _CPUS) -> int:
    """Returns the number of cores that this process may use; two threads of a core share one.

    A limit of CPU time counts, too: more threads than it lasts for would all be stopped for the
    rest of each period, and the others would wait for those that hold a tile.
    """
    cores = len({_core_of(cpu, cpus) for cpu in os.sched_getaffinity(0)})
    quota = cpu_quota()
    return cores if quota is None else max(1, min(cores, math.ceil(quota)))


def _core_of(cpu: int, cpus: Path) -> str:
    """Returns what the CPUs of one core have in common."""
    try:
        return (cpus / f"cpu{cpu}/topology/thread_siblings_list").read_text().strip()
    except OSError:
        return str(cpu)  # nothing says that CPUs share a core

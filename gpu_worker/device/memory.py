"""How much memory there is, as the process may use it, and how much a piece of work took."""

import os
from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import torch

_NO_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",  # where it loads a kernel
)
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
_STATUS = Path("/proc/self/status")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Says whether PyTorch found no memory; not everybody below it has an error of its own."""
    return isinstance(error, torch.OutOfMemoryError) or any(one in str(error) for one in _NO_MEMORY)


def available_ram() -> int:
    """Returns free RAM in bytes: the machine's, or what the container has left if that is less."""
    return min(_machine_available(), _container_available())


def _machine_available() -> int:
    free = _kib_of("MemAvailable", _MEMORY)
    # Without procfs nothing says what is free: count on half of what there is.
    return free or os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _container_available() -> int:
    """By cgroups of version 2 or 1; without a limit, more than any machine has."""
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


class DeviceUse(NamedTuple):
    """What this process holds of a device's memory, in bytes; see MemoryReport in worker.proto."""

    used: int
    unused: int
    total: int


def device_use(device: torch.device) -> DeviceUse:
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        unused = reserved - torch.cuda.memory_allocated(device)
        return DeviceUse(reserved, unused, torch.cuda.mem_get_info(device)[1])
    used = _kib_of("VmRSS", _STATUS)
    return DeviceUse(used, 0, used + available_ram())


def bytes_in_use(device: torch.device) -> int:
    """Returns what all processes use of a CUDA device; 0 for a CPU, whose free RAM is asked for."""
    if device.type != "cuda":
        return 0
    free, total = torch.cuda.mem_get_info(device)
    return total - free


def tensor_bytes(holder: object) -> int:
    """Returns the bytes of all tensors below an object of ours, each memory once."""
    found: dict[int, int] = {}
    seen: set[int] = set()
    todo = [holder]
    while todo:
        one = todo.pop()
        if id(one) in seen or isinstance(one, ModuleType | FunctionType | type):
            continue
        seen.add(id(one))
        if isinstance(one, torch.Tensor):
            found[id(one) if one.is_mkldnn else one.untyped_storage().data_ptr()] = one.nbytes
        elif isinstance(one, dict):
            todo += one.values()
        elif isinstance(one, list | tuple):
            todo += one
        else:
            todo += vars(one).values() if hasattr(one, "__dict__") else _slots_of(one)
    return sum(found.values())


def _slots_of(one: object) -> list[object]:
    names = [name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ())]
    return [getattr(one, name) for name in names if hasattr(one, name)]


def peak_growth(device: torch.device, work: Callable[[], object]) -> int:
    """Runs `work`; returns how far memory rose above where it was, in bytes."""
    return _cuda_growth(device, work) if device.type == "cuda" else _process_growth(work)


def _cuda_growth(device: torch.device, work: Callable[[], object]) -> int:
    """Of what PyTorch reserves: between the pieces that it hands out there are gaps."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def _process_growth(work: Callable[[], object]) -> int:
    before = _kib_of("VmRSS", _STATUS)
    _forget_peak()
    work()
    return max(0, _kib_of("VmHWM", _STATUS) - before)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak may then be an older one: an estimate on the safe side


def _kib_of(name: str, file: Path) -> int:
    """Reads a procfs line such as "VmRSS:  1234 kB", in bytes; 0 where there is none."""
    lines = file.read_text().splitlines() if file.exists() else []
    for line in lines:
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0

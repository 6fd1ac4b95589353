"""How much memory there is, as the process may use it, and how much a piece of work took."""

from collections.abc import Callable
from pathlib import Path

import torch

_CGROUP = Path("/sys/fs/cgroup")


def available_ram() -> int:
    """Returns free RAM in bytes: the machine's, or what the container has left if that is less."""
    return min(_machine_available(), _container_available())


def _machine_available() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise MemoryError("cannot tell how much memory is free; set kv_cache_bytes")


def _container_available() -> int:
    try:
        limit = (_CGROUP / "memory.max").read_text().strip()
        used = int((_CGROUP / "memory.current").read_text())
        cached = _cgroup_stat("inactive_file")
    except (OSError, ValueError):
        return 1 << 62
    return 1 << 62 if limit == "max" else max(0, int(limit) - used + cached)


def _cgroup_stat(name: str) -> int:
    for line in (_CGROUP / "memory.stat").read_text().splitlines():
        key, value = line.split()
        if key == name:
            return int(value)
    return 0


def peak_growth(device: torch.device, work: Callable[[], object]) -> int:
    """Runs `work`; returns how far memory rose above where it was, in bytes."""
    return _cuda_growth(device, work) if device.type == "cuda" else _process_growth(work)


def _cuda_growth(device: torch.device, work: Callable[[], object]) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _process_growth(work: Callable[[], object]) -> int:
    before = _status("VmRSS")
    _forget_peak()
    work()
    return max(0, _status("VmHWM") - before)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak may then be an older one: an estimate on the safe side


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    return 0

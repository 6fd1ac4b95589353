"""Measures memory: how much the process may use, and how much a piece of work took."""

from collections.abc import Callable
from pathlib import Path
from types import FunctionType, ModuleType
from typing import NamedTuple

import torch

from gpu_worker.device.ram import available_ram, procfs_bytes

_NO_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",  # where it loads a kernel
)
_STATUS = Path("/proc/self/status")


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether PyTorch found no memory; some libraries below it have no error type for
    that."""
    return isinstance(error, torch.OutOfMemoryError) or any(one in str(error) for one in _NO_MEMORY)


class DeviceUse(NamedTuple):
    """Memory of a device that this process holds, in bytes; see MemoryReport in worker.proto."""

    used: int
    unused: int
    total: int


def device_use(device: torch.device) -> DeviceUse:
    if device.type == "cuda":
        reserved = torch.cuda.memory_reserved(device)
        unused = reserved - torch.cuda.memory_allocated(device)
        return DeviceUse(reserved, unused, torch.cuda.mem_get_info(device)[1])
    used = procfs_bytes("VmRSS", _STATUS)
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
    """Returns the growth of PyTorch's reserved memory, including gaps between its pieces."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_reserved(device)
    work()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_reserved(device) - before


def _process_growth(work: Callable[[], object]) -> int:
    before = procfs_bytes("VmRSS", _STATUS)
    _forget_peak()
    work()
    return max(0, procfs_bytes("VmHWM", _STATUS) - before)


def _forget_peak() -> None:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return  # the peak may then be an older one: an estimate on the safe side

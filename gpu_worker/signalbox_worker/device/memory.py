"""Measures the memory of tensors and of CUDA devices, and recognises errors for lack of it."""

from types import FunctionType, ModuleType

import torch

_NO_MEMORY = (
    "can't allocate memory",
    "CUDA error: out of memory",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "Triton Error [CUDA]: out of memory",  # where it loads a kernel
)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Returns whether PyTorch found no memory; some libraries below it have no error type for
    that."""
    return isinstance(error, torch.OutOfMemoryError) or any(one in str(error) for one in _NO_MEMORY)


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

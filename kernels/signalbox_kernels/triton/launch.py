"""Checks of launchers' arguments, and whether kernels are compiled or interpreted."""

import torch
import triton
import triton.language as tl
from torch import Tensor

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_TRITON_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


def is_interpreted() -> bool:
    """Returns whether kernels run in Triton's interpreter."""
    return bool(triton.knobs.runtime.interpret)


def check(holds: bool, message: str) -> None:
    """Raises ValueError with the message if the condition is false."""
    if not holds:
        raise ValueError(message)


def check_tensors(op: str, *tensors: Tensor) -> None:
    """Refuses tensors on several devices, or on one that kernels cannot reach."""
    devices = {tensor.device for tensor in tensors}
    check(len(devices) == 1, f"{op}: tensors are on {', '.join(sorted(map(str, devices)))}")
    check(
        tensors[0].device.type != "cpu" or is_interpreted(),
        f"{op}: Triton needs a CUDA device; set TRITON_INTERPRET=1 to interpret kernels on a CPU",
    )


def check_floats(op: str, *tensors: Tensor) -> None:
    """Refuses tensors of several types, or whose last dimension has gaps."""
    types = {tensor.dtype for tensor in tensors}
    check(
        len(types) == 1 and tensors[0].dtype in FLOAT_TYPES,
        f"{op}: tensors are {', '.join(sorted(map(str, types)))}; "
        "they must all be float32, bfloat16 or float16",
    )
    check(
        all(tensor.stride(-1) == 1 or tensor.shape[-1] == 1 for tensor in tensors),
        f"{op}: the last dimension of every tensor must be contiguous",
    )


def product_type(dtype: torch.dtype) -> tl.dtype:
    """Returns the type that tl.dot multiplies for tensors of a type, with sums in float32.

    The interpreter multiplies the bits of a bfloat16 as if they were an integer.
    """
    return tl.float32 if is_interpreted() else _TRITON_TYPES[dtype]

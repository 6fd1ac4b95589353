"""Checks of launchers' arguments, and whether kernels are compiled or interpreted."""

from functools import cache
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

FLOAT_TYPES = (torch.float32, torch.bfloat16, torch.float16)
_TRITON_TYPES = {
    torch.float32: tl.float32,
    torch.bfloat16: tl.bfloat16,
    torch.float16: tl.float16,
}


@cache
def is_interpreted() -> bool:
    """Returns whether kernels run in Triton's interpreter, which its import has decided."""
    return bool(triton.knobs.runtime.interpret)


@triton.jit
def await_kernels_before(DEPENDENT: tl.constexpr):
    """Waits for all kernels before, if this one was launched early, and lets the next one be.

    Every program begins with it, also one that has nothing to do: a kernel has ended when its
    programs have, and the next one then relies on what was before this one, too.
    """
    if DEPENDENT:
        gdc_wait()
        gdc_launch_dependents()


def launch_options(dependent: bool) -> dict[str, Any]:
    """Returns the arguments of a kernel that calls `await_kernels_before`.

    Args:
        dependent: True if it is launched while the kernel before ends (programmatic dependent
            launch, of compute capability 9.0 and later); interpreted programs run in turn.
    """
    is_early = dependent and not is_interpreted()
    return {"DEPENDENT": True, "launch_pdl": True} if is_early else {"DEPENDENT": False}


def next_power_of_2(number: int) -> int:
    """Returns what Triton's function of that name does, which takes microseconds a call."""
    return 1 << max(0, number - 1).bit_length()


def check(holds: bool, message: str, *values: object) -> None:
    """Raises ValueError if the condition is false.

    Launchers check at each call, and formatting shapes takes longer than a launch: they are passed
    as `values`, for the braces of the message.
    """
    if not holds:
        shown = (tuple(value) if isinstance(value, torch.Size) else value for value in values)
        raise ValueError(message.format(*shown))


def check_tensors(op: str, *tensors: Tensor) -> None:
    """Refuses tensors on several devices, or on one that kernels cannot reach."""
    device = tensors[0].device
    for tensor in tensors:
        if tensor.device != device:
            named = sorted({str(each.device) for each in tensors})
            raise ValueError(f"{op}: tensors are on {', '.join(named)}")
    if device.type == "cpu" and not is_interpreted():
        raise ValueError(
            f"{op}: Triton needs a CUDA device; set TRITON_INTERPRET=1 to interpret kernels on a "
            "CPU"
        )


def check_floats(op: str, *tensors: Tensor) -> None:
    """Refuses tensors of several types, or whose last dimension has gaps."""
    dtype = tensors[0].dtype
    for tensor in tensors:
        if tensor.dtype is not dtype or dtype not in FLOAT_TYPES:
            types = sorted({str(each.dtype) for each in tensors})
            raise ValueError(
                f"{op}: tensors are {', '.join(types)}; "
                "they must all be float32, bfloat16 or float16"
            )
        if tensor.stride(-1) != 1 and tensor.shape[-1] != 1:
            raise ValueError(f"{op}: the last dimension of every tensor must be contiguous")


def check_cache(op: str, kv_cache: Tensor, token_scales: Tensor | None, *heads: Tensor) -> None:
    """Refuses a cache that is neither of the heads' type, E4M3 nor int8 with scales, and heads as
    `check_floats` does."""
    check_floats(op, *heads)
    has_scales = token_scales is not None
    check(
        kv_cache.dtype in ((torch.int8,) if has_scales else (heads[0].dtype, torch.float8_e4m3fn)),
        "{}: the cache is {}; it must be {} or float8_e4m3fn, or int8 with token_scales",
        op,
        kv_cache.dtype,
        heads[0].dtype,
    )
    if token_scales is not None:
        check_tensors(op, kv_cache, token_scales)
        check(
            token_scales.dtype is torch.float32 and token_scales.shape == kv_cache.shape[:4],
            "{}: scales are {} of {}, not {} of float32",
            op,
            token_scales.shape,
            token_scales.dtype,
            kv_cache.shape[:4],
        )
    check(kv_cache.stride(-1) == 1, "{}: the last dimension of the cache must be contiguous", op)


def scale_strides(token_scales: Tensor | None) -> tuple[int, ...]:
    """Returns the strides of scales as kernels take them, zeros without any."""
    return (0, 0, 0, 0) if token_scales is None else token_scales.stride()


def product_type(dtype: torch.dtype) -> tl.dtype:
    """Returns the type that tl.dot multiplies for tensors of a type, with sums in float32.

    The interpreter multiplies the bits of a bfloat16 as if they were an integer.
    """
    return tl.float32 if is_interpreted() else _TRITON_TYPES[dtype]

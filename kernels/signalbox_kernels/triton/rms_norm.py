"""RMSNorm (Zhang and Sennrich, 2019), alone and fused with the residual's addition.

A program takes one row, which stays in registers between the two passes over it.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.launch import check, check_floats, check_tensors, next_power_of_2

_LARGEST_ROW = 65536
"""Elements of a row that a program can hold."""


@triton.jit
def _rms_norm_kernel(
    x,
    residual,
    weight,
    out,
    outer_stride,
    inner_stride,
    inner_rows,
    residual_stride,
    size,
    eps,
    ADDS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    element = tl.arange(0, PADDED_SIZE)
    mask = element < size
    x += (row // inner_rows) * outer_stride + (row % inner_rows) * inner_stride
    loaded = tl.load(x + element, mask=mask, other=0.0)
    wide = loaded.to(tl.float32)
    if ADDS:
        residual += row * residual_stride
        total = wide + tl.load(residual + element, mask=mask, other=0.0).to(tl.float32)
        rounded = total.to(loaded.dtype)
        tl.store(residual + element, rounded, mask=mask)
        wide = rounded.to(tl.float32)  # the norm is that of what the next layer will read
    scale = tl.rsqrt(tl.sum(wide * wide, axis=0) / size + eps)
    normed = (wide * scale).to(loaded.dtype).to(tl.float32)
    weights = tl.load(weight + element, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * size + element, (normed * weights).to(loaded.dtype), mask=mask)


def rms_norm(x: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Normalises the last dimension; `ops.rms_norm` is the contract.

    Rows of a [num_tokens, num_heads, head_size] view are read where they lie.
    """
    _check("rms_norm", weight, x)
    rows = x if x.dim() == 3 else x.reshape(-1, 1, x.shape[-1])
    return _launch(rows, None, weight, eps).view(x.shape)


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, *, eps: float) -> Tensor:
    """Adds `x` to `residual` and normalises the sum; `ops.fused_add_rms_norm` is the contract."""
    _check("fused_add_rms_norm", weight, x, residual)
    check(
        x.dim() == 2 and x.shape == residual.shape,
        "fused_add_rms_norm: x is {}, residual is {}",
        x.shape,
        residual.shape,
    )
    return _launch(x.unsqueeze(1), residual, weight, eps).view(x.shape)


def _check(op: str, weight: Tensor, *rows: Tensor) -> None:
    check_tensors(op, weight, *rows)
    check_floats(op, weight, *rows)
    size = rows[0].shape[-1]
    check(weight.shape == (size,), "{}: rows have {} elements, weights {}", op, size, weight.shape)
    check(size <= _LARGEST_ROW, "{}: rows have {} elements; at most {}", op, size, _LARGEST_ROW)


def _launch(x: Tensor, residual: Tensor | None, weight: Tensor, eps: float) -> Tensor:
    """`x` is [outer rows, inner rows, size]."""
    size = weight.shape[0]
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    if not out.numel():
        return out
    padded = next_power_of_2(size)
    _rms_norm_kernel[(x.shape[0] * x.shape[1],)](
        x,
        x if residual is None else residual,
        weight,
        out,
        *x.stride()[:2],
        x.shape[1],
        0 if residual is None else residual.stride(0),
        size,
        eps,
        ADDS=residual is not None,
        PADDED_SIZE=padded,
        num_warps=min(16, max(1, padded // 512)),
    )
    return out

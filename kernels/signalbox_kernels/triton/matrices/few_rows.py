"""Products of few rows with a plain matrix, fused with the norm before, and what comes after.

The time of such a product is that of reading the matrix. A program takes some outputs of all rows
and streams its rows of the matrix through tiles that lie in flight together; the norm of the rows,
which come from the cache of the device, costs it no pass of its own: sums of squares are taken
beside the products, which are scaled by them at the end.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.triton.launch import (
    check,
    check_tensors,
    is_interpreted,
    next_power_of_2,
    product_type,
)

MAX_ROWS = 16
"""Rows of a tile, which a matrix instruction multiplies at once."""
DTYPES = (torch.bfloat16, torch.float32)
"""float16 is left out: rows that are weighed and not scaled yet may overflow in it."""
_OUTPUTS = 32
_NUM_STAGES = 5


@triton.jit
def _rounded(acc, bias, output, is_output, HAS_BIAS: tl.constexpr):
    """Returns a product as PyTorch does, which rounds it with its bias to the type of `bias`."""
    if HAS_BIAS:
        acc += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
    return acc.to(bias.dtype.element_ty).to(tl.float32)


@triton.jit(do_not_specialize=["num_rows"])
def _few_rows_kernel(
    x,
    norm,
    weight,
    bias,
    out,
    row_stride,
    size,
    num_outputs,
    num_rows,
    eps,
    HAS_NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_GATED: tl.constexpr,
    ADDS: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    is_output, is_row = output < num_outputs, row < num_rows
    x_rows = x + row[:, None] * row_stride
    weights = weight + output.to(tl.int64)[:, None] * size
    other_weights = weights + num_outputs.to(tl.int64) * size
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    other = tl.zeros([OUTPUTS, ROWS], tl.float32)
    squares = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, size, COLUMNS):
        at = start + column
        inside = (at < size)[None, :]
        w = tl.load(weights + at[None, :], mask=is_output[:, None] & inside, other=0.0)
        rows = tl.load(x_rows + at[None, :], mask=is_row[:, None] & inside, other=0.0)
        if HAS_NORM:
            wide = rows.to(tl.float32)
            squares += wide * wide
            weighed = wide * tl.load(norm + at, mask=at < size, other=0.0).to(tl.float32)[None, :]
            rows = weighed.to(rows.dtype)
        factor = tl.trans(rows.to(PRODUCT))
        acc = tl.dot(w.to(PRODUCT), factor, acc, input_precision="ieee")
        if IS_GATED:
            w = tl.load(other_weights + at[None, :], mask=is_output[:, None] & inside, other=0.0)
            other = tl.dot(w.to(PRODUCT), factor, other, input_precision="ieee")
    if HAS_NORM:
        scale = tl.rsqrt(tl.sum(squares, axis=1) / size + eps)[None, :]
        acc *= scale
        other *= scale
    values = _rounded(acc, bias, output, is_output, HAS_BIAS)
    if IS_GATED:
        up = _rounded(other, bias + num_outputs, output, is_output, HAS_BIAS)
        activated = (values / (1.0 + tl.exp(-values))).to(out.dtype.element_ty).to(tl.float32)
        values = activated * up
    place = out + row[:, None] * num_outputs + output[None, :]
    mask = is_row[:, None] & is_output[None, :]
    values = tl.trans(values)
    if ADDS:
        values += tl.load(place, mask=mask, other=0.0).to(tl.float32)
    tl.store(place, values.to(out.dtype.element_ty), mask=mask)


def rms_norm_linear(
    x: Tensor,
    norm: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    *,
    eps: float,
    is_gated: bool = False,
) -> Tensor:
    """Norms rows and multiplies them; `ops.rms_norm_linear` is the contract."""
    op = "rms_norm_linear"
    _check(op, x, weight, bias, norm)
    check(norm.shape == (x.shape[1],), "{}: norm is {}, rows are {}", op, norm.shape, x.shape)
    check(not is_gated or len(weight) % 2 == 0, "{}: {} is no pair of matrices", op, weight.shape)
    outputs = len(weight) // 2 if is_gated else len(weight)
    out = torch.empty(len(x), outputs, dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, out, norm=norm, eps=eps, is_gated=is_gated)
    return out


def linear_add(x: Tensor, weight: Tensor, bias: Tensor | None, residual: Tensor) -> None:
    """Adds a product to `residual`; `ops.linear_add` is the contract."""
    op = "linear_add"
    _check(op, x, weight, bias, residual)
    check(
        residual.shape == (len(x), len(weight)) and residual.is_contiguous(),
        "{}: the sum is {}, with {} rows and {} outputs to add",
        op,
        residual.shape,
        len(x),
        len(weight),
    )
    _launch(x, weight, bias, residual, norm=None)


def _check(op: str, x: Tensor, weight: Tensor, bias: Tensor | None, *others: Tensor) -> None:
    if bias is not None:
        others += (bias,)
    check_tensors(op, x, weight, *others)
    check(x.dtype in DTYPES, "{}: rows are {}; use bfloat16 or float32", op, x.dtype)
    check(
        all(each.dtype is x.dtype for each in (weight, *others)), "{}: operands differ in type", op
    )
    check(
        x.dim() == 2 and len(x) <= MAX_ROWS and x.stride(1) == 1,
        "{}: rows are {}; at most {} without gaps",
        op,
        x.shape,
        MAX_ROWS,
    )
    check(
        weight.dim() == 2 and weight.shape[1] == x.shape[1] and weight.is_contiguous(),
        "{}: the matrix is {}, rows are {}",
        op,
        weight.shape,
        x.shape,
    )
    check(
        bias is None or bias.shape == (len(weight),),
        "{}: the bias is of another length than the {} outputs",
        op,
        len(weight),
    )


def _launch(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    *,
    norm: Tensor | None,
    eps: float = 0.0,
    is_gated: bool = False,
) -> None:
    """Adds to `out` where there is no norm, else writes it."""
    if not len(x):
        return
    num_outputs = out.shape[1]
    columns = 128 if x.itemsize == 2 else 32
    if is_interpreted():  # a loop costs more there than what is in it
        columns = min(4096, next_power_of_2(x.shape[1]))
    _few_rows_kernel[(triton.cdiv(num_outputs, _OUTPUTS),)](
        x,
        weight if norm is None else norm,
        weight,
        out if bias is None else bias,
        out,
        x.stride(0),
        x.shape[1],
        num_outputs,
        len(x),
        eps,
        HAS_NORM=norm is not None,
        HAS_BIAS=bias is not None,
        IS_GATED=is_gated,
        ADDS=norm is None,
        ROWS=MAX_ROWS,
        OUTPUTS=_OUTPUTS,
        COLUMNS=columns,
        PRODUCT=product_type(x.dtype),
        num_warps=4,
        num_stages=_NUM_STAGES,
    )

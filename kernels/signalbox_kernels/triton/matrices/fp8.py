"""Products of E4M3 with E4M3: rounds activations to codes, then multiplies codes of both sides.

The tensor cores of Hopper keep some 14 bits of a sum of E4M3 products. A sum is therefore moved to
registers in float32 after each tile of columns: by the scales that are applied there, or, with a
scale for each row, because `tl.dot` is told the number of columns. The sizes of tiles are chosen by
the compiler's figures; none has been timed on a GPU.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.torch.fp8 import E4M3_MAX, FP8_GROUP, LEAST_MAXIMUM
from signalbox_kernels.triton.launch import (
    FLOAT_TYPES,
    check,
    check_tensors,
    is_interpreted,
    next_power_of_2,
)

_LARGEST_ROW = 65536
"""Elements of a row that a program can hold."""
_GROUPS_PER_PROGRAM = 16
_TILES_IN_TURN = 8
"""Tiles of tokens that share tiles of the weight in the L2 cache."""


class _Tile(NamedTuple):
    """The sizes of what one program computes at a time."""

    tokens: int
    rows: int
    """Rows of the weight."""
    columns: int
    num_warps: int
    num_stages: int


@triton.jit
def _quantize_fp8_kernel(
    x,
    codes,
    scales,
    x_stride,
    size,
    num_groups,
    static_scale,
    IS_STATIC: tl.constexpr,
    LEAST: tl.constexpr,
    LARGEST: tl.constexpr,
    GROUPS: tl.constexpr,
    WIDTH: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    group = tl.program_id(1) * GROUPS + tl.arange(0, GROUPS)
    element = group[:, None] * WIDTH + tl.arange(0, WIDTH)[None, :]
    mask = element < size
    wide = tl.load(x + row * x_stride + element, mask=mask, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.max(tl.abs(wide), axis=1), LEAST) / LARGEST
    if IS_STATIC:
        scale = tl.zeros_like(scale) + static_scale
    scaled = wide / scale[:, None]
    if IS_STATIC:  # NaN stays NaN
        scaled = tl.where(scaled > LARGEST, LARGEST, tl.where(scaled < -LARGEST, -LARGEST, scaled))
    tl.store(codes + row * size + element, scaled.to(codes.dtype.element_ty), mask=mask)
    tl.store(scales + row * num_groups + group, scale, mask=group < num_groups)


@triton.jit(do_not_specialize=["num_tokens"])
def _fp8_linear_kernel(
    x,
    x_scales,
    weight,
    scales,
    bias,
    out,
    num_tokens,
    num_rows,
    size,
    num_groups,
    IS_GROUPED: tl.constexpr,
    ROWS_PER_SCALE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRODUCT: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    IN_TURN: tl.constexpr,
):
    tiles = tl.cdiv(num_tokens, TOKENS)
    in_turn = IN_TURN * tl.cdiv(num_rows, ROWS)
    first = tl.program_id(0) // in_turn * IN_TURN
    beside = tl.minimum(tiles - first, IN_TURN)
    tile = tl.program_id(0) % in_turn
    token = (first + tile % beside) * TOKENS + tl.arange(0, TOKENS)
    row = tile // beside * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, COLUMNS)
    has_token, has_row = token < num_tokens, row < num_rows
    x += token[:, None].to(tl.int64) * size + column[None, :]
    weight += row[:, None].to(tl.int64) * size + column[None, :]
    x_scales += token * num_groups
    scales += (row // ROWS_PER_SCALE) * num_groups
    total = tl.zeros((TOKENS, ROWS), tl.float32)
    for start in range(0, size, COLUMNS):
        has_column = (column < size - start)[None, :]
        a = tl.load(x, mask=has_token[:, None] & has_column, other=0.0).to(PRODUCT)
        b = tl.load(weight, mask=has_row[:, None] & has_column, other=0.0).to(PRODUCT)
        if IS_GROUPED:
            of_tokens = tl.load(x_scales, mask=has_token, other=0.0)
            of_rows = tl.load(scales, mask=has_row, other=0.0)
            total += tl.dot(a, tl.trans(b)) * of_tokens[:, None] * of_rows[None, :]
            x_scales += 1
            scales += 1
        else:
            total = tl.dot(a, tl.trans(b), total, max_num_imprecise_acc=COLUMNS)
        x += COLUMNS
        weight += COLUMNS
    if not IS_GROUPED:
        of_tokens = tl.load(x_scales, mask=has_token, other=0.0)
        of_rows = tl.load(scales, mask=has_row, other=0.0)
        total = total * of_tokens[:, None] * of_rows[None, :]
    if HAS_BIAS:
        total += tl.load(bias + row, mask=has_row, other=0.0).to(tl.float32)[None, :]
    out += token[:, None].to(tl.int64) * num_rows + row[None, :]
    tl.store(out, total.to(out.dtype.element_ty), mask=has_token[:, None] & has_row[None, :])


def quantize_fp8(
    x: Tensor, *, group_size: int | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Rounds rows to E4M3; `ops.quantize_fp8` is the contract."""
    num_rows, size = x.shape
    check_tensors("quantize_fp8", x)
    check(x.dtype in FLOAT_TYPES, "quantize_fp8: x is {}", x.dtype)
    check(x.stride(1) == 1, "quantize_fp8: the last dimension of x must be contiguous")
    check(size <= _LARGEST_ROW, "quantize_fp8: rows have {} elements", size)
    width = next_power_of_2(size) if group_size is None else group_size
    check(width & (width - 1) == 0, "quantize_fp8: groups of {} are no power of two", width)
    num_groups = -(-size // width)
    groups = 1 if group_size is None else min(_GROUPS_PER_PROGRAM, next_power_of_2(num_groups))
    codes = torch.empty(num_rows, size, dtype=torch.float8_e4m3fn, device=x.device)
    scales = torch.empty(num_rows, num_groups, dtype=torch.float32, device=x.device)
    if num_rows:
        _quantize_fp8_kernel[(num_rows, -(-num_groups // groups))](
            x,
            codes,
            scales,
            x.stride(0),
            size,
            num_groups,
            1.0 if scale is None else scale,
            IS_STATIC=scale is not None,
            LEAST=LEAST_MAXIMUM,
            LARGEST=E4M3_MAX,
            GROUPS=groups,
            WIDTH=width,
            num_warps=max(4, min(16, groups * width // 1024)),
        )
    return codes, scales


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *,
    rows_per_scale: int,
    x_scale: float | None = None,
) -> Tensor:
    """Multiplies rounded rows with a matrix; `ops.fp8_linear` is the contract."""
    _check_linear(x, weight, scales, bias, rows_per_scale)
    num_tokens, (num_rows, size) = x.shape[0], weight.shape
    out = torch.empty(num_tokens, num_rows, dtype=x.dtype, device=x.device)
    if not num_tokens:
        return out
    num_groups = scales.shape[1]
    group_size = FP8_GROUP if num_groups > 1 else None
    codes, x_scales = quantize_fp8(x, group_size=group_size, scale=x_scale)
    tile = _choose_tile(num_tokens, is_grouped=num_groups > 1)
    programs = -(-num_tokens // tile.tokens) * -(-num_rows // tile.rows)
    _fp8_linear_kernel[(programs,)](
        codes,
        x_scales,
        weight,
        scales,
        weight if bias is None else bias,
        out,
        num_tokens,
        num_rows,
        size,
        num_groups,
        IS_GROUPED=num_groups > 1,
        ROWS_PER_SCALE=rows_per_scale,
        HAS_BIAS=bias is not None,
        PRODUCT=tl.float32 if is_interpreted() else tl.float8e4nv,
        TOKENS=tile.tokens,
        ROWS=tile.rows,
        COLUMNS=tile.columns,
        IN_TURN=_TILES_IN_TURN,
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def _choose_tile(num_tokens: int, *, is_grouped: bool) -> _Tile:
    """Few tokens leave all the time to reading the weight: narrow tiles, many of them in flight.

    A group of columns with scales of its own is a tile.
    """
    if num_tokens <= 16:
        if is_grouped:
            return _Tile(16, 32, FP8_GROUP, num_warps=4, num_stages=8)
        return _Tile(16, 32, 256, num_warps=4, num_stages=6)
    if num_tokens <= 64:
        return _Tile(64, 32, FP8_GROUP, num_warps=4, num_stages=6)
    if is_grouped:  # a sum beside the running one takes twice the registers
        return _Tile(64, 128, FP8_GROUP, num_warps=8, num_stages=4)
    if num_tokens <= 256:
        return _Tile(64, 128, FP8_GROUP, num_warps=4, num_stages=4)
    return _Tile(128, 128, FP8_GROUP, num_warps=8, num_stages=3)


def _check_linear(
    x: Tensor, weight: Tensor, scales: Tensor, bias: Tensor | None, rows_per_scale: int
) -> None:
    check_tensors("fp8_linear", x, weight, scales, *(() if bias is None else (bias,)))
    num_rows, size = weight.shape
    check(weight.dtype is torch.float8_e4m3fn, "fp8_linear: weight is {}", weight.dtype)
    check(scales.dtype is torch.float32, "fp8_linear: scales are {}", scales.dtype)
    check(x.shape[1] == size, "fp8_linear: x has {} columns, weight {}", x.shape[1], size)
    check(weight.is_contiguous() and scales.is_contiguous(), "fp8_linear: weights have gaps")
    num_groups = scales.shape[1]
    check(
        len(scales) == -(-num_rows // rows_per_scale) and num_groups in (1, -(-size // FP8_GROUP)),
        "fp8_linear: scales are {} for a weight of {}",
        scales.shape,
        weight.shape,
    )
    check(
        bias is None or (bias.shape == (num_rows,) and bias.dtype is x.dtype),
        "fp8_linear: bias is of another shape or type",
    )

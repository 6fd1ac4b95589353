"""Products of 16-bit rows with a matrix of 4-bit codes, which are decoded in registers.

A program computes a tile of outputs of some rows. The weights are the first factor of the products,
so that they need not pass through shared memory on their way from decoding; `int4.py` describes the
layout that makes each nibble of the loaded words a tile of its own. Decoded weights are those of
the reference, rounded once to the rows' type; sums are in float32.

Few rows give few programs, and these share the columns. Each leaves its sums in float32, and the
last one to arrive adds them in their order, so that the result does not depend on which was last.
No program waits for another.
"""

from functools import cache
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.torch.int4 import COUNTED, RUN, TILE, Int4Weight
from signalbox_kernels.triton.launch import (
    check,
    check_floats,
    check_tensors,
    is_interpreted,
    product_type,
)

_FEW_ROWS, _MANY_ROWS = 16, 256
_LEAST_RUNS = 4
"""Runs of 128 columns that are worth a program."""
_MAX_SPLITS = 16
_WARPS_PER_PROCESSOR = 8


class Tile(NamedTuple):
    """The sizes of what one program computes."""

    rows: int
    outputs: int
    num_warps: int
    num_stages: int


def choose_tile(num_rows: int, *, num_bytes: int, capability: tuple[int, int]) -> Tile:
    """Returns one of few tiles, each of which is a compilation.

    Those of 16 bits spill nothing, and take at most 99 KiB of shared memory but for Hopper's.
    """
    if num_bytes == 4:
        return Tile(16, 64, num_warps=4, num_stages=2)
    if num_rows <= _FEW_ROWS:
        return Tile(16, 64, num_warps=4, num_stages=5)
    if num_rows > _MANY_ROWS and capability[0] == 9:
        return Tile(128, 128, num_warps=8, num_stages=3)
    return Tile(64, 128, num_warps=8, num_stages=3)


@triton.jit
def _weights_of(words, groups, group, output, is_output, out_features, NIBBLE: tl.constexpr):
    """Returns (code - zero) * scale of a nibble of all words in float32, exactly.

    The code becomes the bits 12 to 15 or 16 to 19 of a float in [1, 2), which takes one shift for
    two nibbles. All products and sums have at most 24 significant bits.
    """
    both = tl.load(groups + group * out_features + output, mask=is_output, other=0)
    scale = (both & -32).to(tl.float32, bitcast=True)
    zero = (both & 31).to(tl.float32)
    shift: tl.constexpr = (NIBBLE + 1) // 2 * 8 - 16
    unit: tl.constexpr = 128 if NIBBLE % 2 == 0 else 2048
    moved = words >> shift if shift > 0 else words << -shift
    bits = (moved & (0x0F << 16 if NIBBLE % 2 == 0 else 0x0F << 12)) | 0x3F800000
    value = bits.to(tl.float32, bitcast=True)  # 1 + code / unit
    return value * (scale * unit)[:, None] - (scale * (zero + unit))[:, None]


@triton.jit
def _decode_run(
    words,
    groups,
    run,
    runs_per_group,
    output,
    is_output,
    out_features,
    TILES_PER_GROUP: tl.constexpr,
):
    """Returns [outputs, 128] weights in float32 of [outputs, 16] words.

    Values are only renamed: each stays with the thread that has its word, and the rows are loaded
    from shared memory in the order that follows from this.
    """
    per_run: tl.constexpr = 8 // TILES_PER_GROUP
    first = run // runs_per_group if per_run == 1 else run * per_run
    n: tl.constexpr = TILES_PER_GROUP
    w0 = _weights_of(words, groups, first, output, is_output, out_features, 0)
    w1 = _weights_of(words, groups, first + 1 // n, output, is_output, out_features, 1)
    w2 = _weights_of(words, groups, first + 2 // n, output, is_output, out_features, 2)
    w3 = _weights_of(words, groups, first + 3 // n, output, is_output, out_features, 3)
    w4 = _weights_of(words, groups, first + 4 // n, output, is_output, out_features, 4)
    w5 = _weights_of(words, groups, first + 5 // n, output, is_output, out_features, 5)
    w6 = _weights_of(words, groups, first + 6 // n, output, is_output, out_features, 6)
    w7 = _weights_of(words, groups, first + 7 // n, output, is_output, out_features, 7)
    even = tl.join(tl.join(w0, w4), tl.join(w2, w6))
    odd = tl.join(tl.join(w1, w5), tl.join(w3, w7))
    joined = tl.join(even, odd)  # the nibble's number in bits: [outputs, 16, 4, 2, 1]
    return tl.permute(joined, (0, 2, 3, 4, 1)).reshape([words.shape[0], 128])


@triton.jit(do_not_specialize=["num_rows", "runs_per_group", "num_splits"])
def _w4a16_kernel(
    x,
    words,
    groups,
    bias,
    out,
    partial,
    arrived,
    row_stride,
    words_per_output,
    in_features,
    out_features,
    num_rows,
    runs_per_group,
    num_splits,
    TILES_PER_GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    output = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    is_row, is_output = row < num_rows, output < out_features
    column, word = tl.arange(0, 128), tl.arange(0, 16)
    x_rows = x + row.to(tl.int64)[:, None] * row_stride
    word_rows = words + output.to(tl.int64)[:, None] * words_per_output

    num_runs = words_per_output // 16
    begin, end = 0, num_runs
    if IS_SPLIT:
        split = tl.program_id(2)
        begin = split * num_runs // num_splits
        end = (split + 1) * num_runs // num_splits
    acc = tl.zeros([OUTPUTS, ROWS], tl.float32)
    for run in range(begin, end):
        packed = tl.load(word_rows + (run * 16 + word)[None, :], mask=is_output[:, None], other=0)
        weights = _decode_run(
            packed.to(tl.uint32, bitcast=True),
            groups,
            run,
            runs_per_group,
            output,
            is_output,
            out_features,
            TILES_PER_GROUP,
        )
        columns = (run * 128 + column)[None, :]
        x_mask = is_row[:, None] & (columns < in_features)
        rows = tl.load(x_rows + columns, mask=x_mask, other=0.0)
        weights = weights.to(x.dtype.element_ty).to(PRODUCT)
        acc = tl.dot(weights, tl.trans(rows.to(PRODUCT)), acc, input_precision="ieee")

    sums = tl.trans(acc)
    place = row.to(tl.int64)[:, None] * out_features + output[None, :]
    mask = is_row[:, None] & is_output[None, :]
    if IS_SPLIT:
        size = num_rows.to(tl.int64) * out_features
        tl.store(partial + split * size + place, sums, mask=mask)
        tl.debug_barrier()  # all threads have stored before one of them says so
        tile = tl.program_id(1) * tl.num_programs(0) + tl.program_id(0)
        if tl.atomic_add(arrived + tile, 1, sem="acq_rel", scope="gpu") < num_splits - 1:
            return
        sums = tl.zeros([ROWS, OUTPUTS], tl.float32)
        for part in range(num_splits):
            sums += tl.load(partial + part * size + place, mask=mask, cache_modifier=".cg")
        tl.store(arrived + tile, 0)  # for the next launch
    if HAS_BIAS:
        sums += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[None, :]
    tl.store(out + place, sums.to(out.dtype.element_ty), mask=mask)


def w4a16_linear(
    x: Tensor, weight: Int4Weight, bias: Tensor | None, *, num_splits: int | None = None
) -> Tensor:
    """Multiplies rows with a matrix; `ops.w4a16_linear` is the contract.

    Args:
        num_splits: programs that share a tile's columns, where one tile has all rows; None chooses
            by the shapes alone.
    """
    _check(x, weight, bias)
    num_rows, num_words = x.shape[0], weight.words.shape[1]
    out = torch.empty((num_rows, weight.out_features), dtype=x.dtype, device=x.device)
    if not num_rows:
        return out
    tile = choose_tile(num_rows, num_bytes=x.itemsize, capability=_capability(x.device))
    columns, rows = -(-weight.out_features // tile.outputs), -(-num_rows // tile.rows)
    if num_splits is None:
        num_runs = num_words // TILE
        num_splits = _choose_splits(columns, num_runs, tile, x.device) if rows == 1 else 1
    check(num_splits == 1 or rows == 1, "w4a16_linear: {} splits, {} tiles", num_splits, rows)
    partial = x.new_empty((num_splits if num_splits > 1 else 0, *out.shape), dtype=torch.float32)
    _w4a16_kernel[(columns, rows, num_splits)](
        x,
        weight.words,
        weight.groups,
        out if bias is None else bias,
        out,
        partial,
        weight.arrived,
        x.stride(0),
        num_words,
        weight.in_features,
        weight.out_features,
        num_rows,
        max(1, weight.group_size // RUN),
        num_splits,
        TILES_PER_GROUP=min(weight.group_size, RUN) // TILE,
        ROWS=tile.rows,
        OUTPUTS=tile.outputs,
        HAS_BIAS=bias is not None,
        IS_SPLIT=num_splits > 1,
        PRODUCT=product_type(x.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out


def _check(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> None:
    op = "w4a16_linear"
    check_tensors(op, x, weight.words, weight.groups, weight.arrived)
    check_floats(op, x, x if bias is None else bias)
    shape = (weight.out_features, weight.in_features)
    check(
        x.dim() == 2 and x.shape[1] == weight.in_features,
        "w4a16_linear: rows are {}, the matrix is {}",
        x.shape,
        shape,
    )
    size = weight.group_size
    check(
        size in (16, 32, 64) or size % RUN == 0,
        "w4a16_linear: groups have {} columns; use 16, 32, 64 or a multiple of 128",
        size,
    )
    check(
        len(weight.arrived) * COUNTED >= weight.out_features,
        "w4a16_linear: {} counters for {} outputs",
        len(weight.arrived),
        weight.out_features,
    )


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return (0, 0) if is_interpreted() else torch.cuda.get_device_capability(device)


@cache
def _num_processors(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def _choose_splits(num_tiles: int, num_runs: int, tile: Tile, device: torch.device) -> int:
    """Returns enough splits to keep the device busy; 1 if a program would get too few columns."""
    if is_interpreted():
        return 1
    wanted = _num_processors(device) * _WARPS_PER_PROCESSOR // tile.num_warps // num_tiles
    return max(1, min(wanted, num_runs // _LEAST_RUNS, _MAX_SPLITS))

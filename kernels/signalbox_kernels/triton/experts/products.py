"""The products of a mixture's experts with their tokens, all experts in one launch.

A program takes a tile of rows, all of one expert, and some columns. The first product reads a
token's row once for each of its experts, and leaves rows in the order of experts, which the second
reads; that one gives each row back to its entry.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from signalbox_kernels.torch.experts import ExpertWeights
from signalbox_kernels.torch.fp8 import FP8_GROUP
from signalbox_kernels.triton.experts.places import Routed
from signalbox_kernels.triton.launch import product_type


class Tile(NamedTuple):
    """The sizes of what one program computes at a time.

    By the compiler's figures none of 16 bits spills a register, and all take at most 99 KiB of
    shared memory. None has been timed on a GPU.
    """

    rows: int
    columns: int
    depth: int
    """Elements of the sum that are read at a time."""
    num_warps: int
    num_stages: int


_FEW_ROWS = 16
_TILES = {
    (1, False): Tile(_FEW_ROWS, 64, 128, num_warps=4, num_stages=4),
    (2, False): Tile(_FEW_ROWS, 64, 128, num_warps=4, num_stages=4),
    (2, True): Tile(128, 128, 64, num_warps=8, num_stages=3),
    (4, False): Tile(_FEW_ROWS, 32, 32, num_warps=4, num_stages=3),
    (1, True): Tile(128, 128, 32, num_warps=8, num_stages=4),
    (4, True): Tile(64, 64, 16, num_warps=8, num_stages=3),
}
"""Tiles by the bytes of a weight, and by whether experts have many rows."""


def choose_tile(weight: Tensor, *, num_entries: int) -> Tile:
    """Returns the tile for a mean number of entries of an expert.

    Few rows wait for the weights, and the least tile reads these as fast as any.
    """
    return _TILES[weight.dtype.itemsize, num_entries > _FEW_ROWS * len(weight)]


@triton.jit
def _add(total, a, b, scales, is_column, IS_GROUPED: tl.constexpr, PRODUCT: tl.constexpr):
    """Adds a tile's product, by the scales of its group of columns if there are groups."""
    if IS_GROUPED:
        of_columns = tl.load(scales, mask=is_column, other=0.0)
        product = tl.dot(a.to(PRODUCT), b.to(PRODUCT), input_precision="ieee")
        total += product * of_columns[None, :]
    else:
        total = tl.dot(a.to(PRODUCT), b.to(PRODUCT), total, input_precision="ieee")
    return total


@triton.jit
def _grouped_product_kernel(
    x,
    weight,
    scales,
    order,
    tiles,
    out,
    x_stride,
    expert_stride,
    in_features,
    out_features,
    num_groups,
    K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_SCALED: tl.constexpr,
    IS_GROUPED: tl.constexpr,
    ROWS_PER_SCALE: tl.constexpr,
    GROUP: tl.constexpr,
    PRODUCT: tl.constexpr,
):
    """Computes silu(gate) * up of tokens with IS_GATED, else the rows of entries in order."""
    tile = tiles + tl.program_id(0) * 3
    expert = tl.load(tile)
    if expert < 0:  # the launcher does not know how many tiles there are
        return

    place = tl.load(tile + 1) + tl.arange(0, ROWS)
    is_row = place < tl.load(tile + 2)
    entry = tl.load(order + place, mask=is_row, other=0)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    is_column = column < out_features
    if IS_GATED:
        source, target = entry // K, place
    else:
        source, target = place, entry
    rows = x + source.to(tl.int64)[:, None] * x_stride
    columns = weight + expert.to(tl.int64) * expert_stride + column[None, :] * in_features
    scale_row = expert * (out_features * 2 if IS_GATED else out_features) + column
    of_columns = scales + scale_row // ROWS_PER_SCALE * num_groups
    of_up = scales + (scale_row + out_features) // ROWS_PER_SCALE * num_groups
    product = tl.zeros([ROWS, COLUMNS], tl.float32)
    up = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, in_features, DEPTH):
        depth = start + tl.arange(0, DEPTH)
        is_depth = depth < in_features
        a = tl.load(rows + depth[None, :], mask=is_row[:, None] & is_depth[None, :], other=0.0)
        is_weight = is_depth[:, None] & is_column[None, :]
        b = tl.load(columns + depth[:, None], mask=is_weight, other=0.0)
        product = _add(product, a, b, of_columns + start // GROUP, is_column, IS_GROUPED, PRODUCT)
        if IS_GATED:
            up_columns = columns + out_features * in_features
            c = tl.load(up_columns + depth[:, None], mask=is_weight, other=0.0)
            up = _add(up, a, c, of_up + start // GROUP, is_column, IS_GROUPED, PRODUCT)
    if IS_SCALED and not IS_GROUPED:
        product = product * tl.load(of_columns, mask=is_column, other=0.0)[None, :]
        if IS_GATED:
            up = up * tl.load(of_up, mask=is_column, other=0.0)[None, :]
    if IS_GATED:
        product = product / (1.0 + tl.exp(-product)) * up
    targets = out + target.to(tl.int64)[:, None] * out_features + column[None, :]
    is_target = is_row[:, None] & is_column[None, :]
    tl.store(targets, product.to(out.dtype.element_ty), mask=is_target)


def grouped_product(
    x: Tensor, weights: ExpertWeights, routed: Routed, *, tile: Tile, is_gated: bool
) -> Tensor:
    """Multiplies rows by the weights of their experts.

    Args:
        x: if gated, [num_tokens, in_features], rows of tokens; else [num_entries, in_features],
            rows in order.
        weights: of [out_features, in_features], twice the out_features if gated: gate, then up.
        tile: as `routed` was made for.

    Returns:
        [num_entries, out_features]: if gated, silu(gate) * up in order; else rows of entries.
    """
    weight, scales, rows_per_scale = weights
    in_features = weight.shape[2]
    out_features = weight.shape[1] // 2 if is_gated else weight.shape[1]
    columns = tile.columns // 2 if is_gated else tile.columns
    out = torch.empty(len(routed.order), out_features, dtype=x.dtype, device=x.device)
    _grouped_product_kernel[(len(routed.tiles), -(-out_features // columns))](
        x,
        weight,
        weight if scales is None else scales,
        routed.order,
        routed.tiles,
        out,
        x.stride(0),
        weight.stride(0),
        in_features,
        out_features,
        1 if scales is None else scales.shape[1],
        K=routed.shares.shape[1],
        ROWS=tile.rows,
        COLUMNS=columns,
        DEPTH=tile.depth,
        IS_GATED=is_gated,
        IS_SCALED=scales is not None,
        IS_GROUPED=scales is not None and scales.shape[1] > 1,
        ROWS_PER_SCALE=rows_per_scale,
        GROUP=FP8_GROUP,
        PRODUCT=product_type(x.dtype),
        num_warps=tile.num_warps,
        num_stages=tile.num_stages,
    )
    return out

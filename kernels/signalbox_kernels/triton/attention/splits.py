"""Joins the parts of attention whose keys several programs shared, as Flash-Decoding does (2023).

Each program leaves, for each of its rows, the greatest score (in units of log 2), the sum of
weights relative to it, and the weighted sum of V. A part without keys has a greatest score of -inf.
"""

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor


class Partials(NamedTuple):
    """Partial results of the programs; all float32, empty if no keys are shared."""

    out: Tensor
    """[num_tokens, num_heads, num_splits, padded_size]."""
    top: Tensor
    """[num_tokens, num_heads, num_splits]."""
    total: Tensor
    """[num_tokens, num_heads, num_splits]."""


def make_partials(out: Tensor, *, num_splits: int, padded_size: int) -> Partials:
    """Allocates the partial results of `out`, [num_tokens, num_heads, head_size]."""
    splits = num_splits if num_splits > 1 else 0
    rows = (*out.shape[:2], splits)
    return Partials(
        out.new_empty((*rows, padded_size), dtype=torch.float32),
        out.new_empty(rows, dtype=torch.float32),
        out.new_empty(rows, dtype=torch.float32),
    )


@triton.jit
def _join_splits_kernel(
    split_out,
    split_max,
    split_sum,
    out,
    head_size,
    SPLITS: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    split = tl.arange(0, SPLITS)
    element = tl.arange(0, PADDED_SIZE)
    parts = row * SPLITS + split
    top = tl.load(split_max + parts)
    weights = tl.exp2(top - tl.max(top, axis=0))
    total = tl.sum(weights * tl.load(split_sum + parts), axis=0)
    values = tl.load(split_out + parts[:, None] * PADDED_SIZE + element[None, :])
    joined = tl.sum(weights[:, None] * values, axis=0) / total
    target = out + row * head_size + element
    tl.store(target, joined.to(out.dtype.element_ty), mask=element < head_size)


def join_splits(out: Tensor, partials: Partials) -> None:
    """Writes the joined parts to `out`, [num_tokens, num_heads, head_size]."""
    _join_splits_kernel[(out.shape[0] * out.shape[1],)](
        *partials,
        out,
        out.shape[2],
        SPLITS=partials.top.shape[2],
        PADDED_SIZE=partials.out.shape[3],
    )

"""Matrices and rows in E4M3, in plain Torch."""

import torch
import torch.nn.functional as F
from torch import Tensor

E4M3_MAX = 448.0
"""Largest finite value of float8_e4m3fn, which has no infinity."""
FP8_GROUP = 128
"""Columns of a block with a scale of its own."""
LEAST_MAXIMUM = 1e-10
"""Keeps the scale of zeros from being zero."""


def quantize_fp8(
    x: Tensor, *, group_size: int | None = None, scale: float | None = None
) -> tuple[Tensor, Tensor]:
    """Rounds rows to E4M3, the largest value of a row or of a group to the largest code.

    Args:
        x: [num_rows, size].
        group_size: elements that share a scale; None stands for a row's.
        scale: a static one of all rows; what it takes beyond the largest code becomes that.

    Returns:
        [num_rows, size] float8_e4m3fn, and [num_rows, num_groups] float32: a value is code * scale.
    """
    size = x.shape[-1]
    width = group_size or size
    groups = F.pad(x.float(), (0, -size % width)).view(len(x), -1, width)
    scales = groups.abs().amax(dim=-1).clamp_min_(LEAST_MAXIMUM).div_(E4M3_MAX)
    if scale is not None:
        scales.fill_(scale)
    scaled = (groups / scales[..., None]).flatten(-2)[..., :size]
    return scaled.clamp_(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scales


def fp8_linear(
    x: Tensor,
    weight: Tensor,
    scales: Tensor,
    bias: Tensor | None,
    *,
    rows_per_scale: int,
    x_scale: float | None = None,
) -> Tensor:
    """Returns x @ matrix.T + bias for a matrix in E4M3, with x rounded by `quantize_fp8`.

    Products are summed in float32.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features] float8_e4m3fn.
        scales: [out_features / rows_per_scale, num_groups] float32, rounded up. One group is all
            columns; of several each is of 128 columns, and x is rounded in groups of 128 too.
        bias: [out_features], the dtype of `x`.
        rows_per_scale: rows that share a scale: 1, or a power of two up to 128.
        x_scale: a static scale that x is rounded with.

    Returns:
        [num_tokens, out_features], the dtype of `x`.
    """
    is_grouped = scales.shape[1] > 1
    codes, of_x = quantize_fp8(x, group_size=FP8_GROUP if is_grouped else None, scale=x_scale)
    width = FP8_GROUP if is_grouped else x.shape[1]
    of_rows = scales.repeat_interleave(rows_per_scale, dim=0)[: len(weight)]
    matrix = weight.float() * of_rows.repeat_interleave(width, dim=1)[:, : x.shape[1]]
    rows = codes.float() * of_x.repeat_interleave(width, dim=1)[:, : x.shape[1]]
    return F.linear(rows, matrix, None if bias is None else bias.float()).to(x.dtype)

"""Rounds activations as `Rounding` says, in PyTorch: the reference of native programs."""

import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels.rounding import Rounding
from signalbox_kernels.structs import Element

_E4M3_MAX = 448.0
_LEAST_SCALE = torch.finfo(torch.float32).eps
"""Takes the place of a scale of zero."""


def rounded(x: Tensor, rounding: Rounding) -> Tensor:
    """Returns the values of the codes of x, [num_tokens, columns], in its dtype.

    Columns that share a scale become NaN if one of them is not finite.
    """
    size = rounding.group_size
    if size is None:
        return _rounded(x.float(), rounding).to(x.dtype)
    padded = F.pad(x.float(), (0, -x.shape[-1] % size))
    groups = padded.reshape(*x.shape[:-1], -1, size)
    return _rounded(groups, rounding).flatten(-2)[..., : x.shape[-1]].to(x.dtype)


def _rounded(x: Tensor, rounding: Rounding) -> Tensor:
    low, high = (-128.0, 127.0) if rounding.code is Element.INT8 else (-_E4M3_MAX, _E4M3_MAX)
    scale, zero = _scale_and_zero(x, rounding, low, high)
    codes = (x / scale + zero).clamp(low, high)
    is_int8 = rounding.code is Element.INT8
    codes = codes.round() if is_int8 else codes.to(torch.float8_e4m3fn).float()
    return (codes - zero) * scale


def _scale_and_zero(
    x: Tensor, rounding: Rounding, low: float, high: float
) -> tuple[Tensor, Tensor]:
    """Returns them for each run of columns, [..., 1]; without finite values the scale is NaN."""
    least, largest = x.aminmax(dim=-1, keepdim=True)
    least, largest = least.clamp(max=0), largest.clamp(min=0)
    zero = torch.full_like(least, rounding.zero_point)
    if rounding.scale is not None:
        scale = torch.full_like(least, rounding.scale)
    elif rounding.is_symmetric:
        scale = torch.maximum(-least, largest) / ((high - low) / 2)
    else:
        scale = (largest - least) / (high - low)
    scale = scale.where(scale != 0, _LEAST_SCALE)
    if not rounding.is_symmetric and rounding.scale is None:
        zero = (low - least / scale).clamp(low, high).round()
    return scale.where((largest - least).isfinite(), torch.nan), zero

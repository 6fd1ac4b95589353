"""Matrices of 4-bit codes in groups along the sum: their layout on a device, and the product.

A weight is (code - zero) * scale, with a scale and a zero point for each group of a row. A run of
128 columns of a row is 16 words of 32 bits, so that a thread loads 16 bytes of neighbours. Bits 4 i
to 4 i + 3 of word w are the code of column 16 i + w of the run: nibble i of all words is a tile of
16 neighbouring columns, which a kernel multiplies without moving values between threads.

A group's scale and zero point are one word: a float32 whose last 5 bits are the zero point. A scale
of 16 bits leaves at least 13 of them free, so nothing is rounded.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

RUN = 128
"""Columns of a run."""
TILE = 16
"""Columns of one nibble of a run, and words of a run; the least size of a group."""
COUNTED = 64
"""Outputs that share a counter of a kernel."""
_NIBBLES = 8
_ZERO_BITS = 0x1F


@dataclass(frozen=True, slots=True)
class Int4Weight:
    """A matrix [out_features, in_features] of codes.

    Args:
        words: [out_features, number of runs * 16] int32.
        groups: [number of groups, out_features] int32: scales and zero points. There are groups for
            whole runs.
        group_size: columns of a group: 16, 32, 64 or a multiple of 128.
        in_features: columns; the last run is filled up with zeros.
        arrived: [out_features / COUNTED, rounded up] int32: a kernel's counters, zero between
            launches.
    """

    words: Tensor
    groups: Tensor
    group_size: int
    in_features: int
    arrived: Tensor

    @property
    def out_features(self) -> int:
        return self.words.shape[0]


def usable_group_size(group_size: int, in_features: int) -> int | None:
    """Returns the size of groups that a matrix in groups of `group_size` is held in.

    A group may be held as several with the same scale. None if no size serves.
    """
    if group_size >= in_features:
        return -(-in_features // RUN) * RUN
    if group_size % RUN == 0:
        return group_size
    return next((size for size in (64, 32, 16) if group_size % size == 0), None)


def pack_words(codes: Tensor) -> Tensor:
    """Returns [out_features, words] int32 of [out_features, in_features] codes in [0, 16)."""
    padded = F.pad(codes, (0, -codes.shape[1] % RUN))
    runs = padded.view(len(codes), -1, _NIBBLES, TILE)
    words = torch.zeros(len(codes), runs.shape[1], TILE, dtype=torch.int32, device=codes.device)
    for nibble in range(_NIBBLES):
        words |= runs[:, :, nibble].to(torch.int32) << 4 * nibble
    return words.view(len(codes), -1)


def pack_groups(scales: Tensor, zeros: Tensor) -> Tensor:
    """Returns int32 of the shape of both.

    Args:
        scales: float16 or bfloat16.
        zeros: whole numbers in [0, 32).
    """
    return scales.float().view(torch.int32) | zeros.to(torch.int32)


def unpack_words(words: Tensor, in_features: int) -> Tensor:
    """Returns [out_features, in_features] uint8."""
    runs = words.view(len(words), -1, 1, TILE)
    shifts = torch.arange(0, 32, 4, dtype=torch.int32, device=words.device)[:, None]
    codes = ((runs >> shifts) & 0xF).to(torch.uint8)
    return codes.reshape(len(words), -1)[:, :in_features]


def unpack_groups(groups: Tensor) -> tuple[Tensor, Tensor]:
    """Returns scales in float32, and zero points in int32."""
    zeros = groups & _ZERO_BITS
    return (groups - zeros).view(torch.float32), zeros


def dequantise(weight: Int4Weight, dtype: torch.dtype) -> Tensor:
    """Returns [out_features, in_features]; each weight is rounded once."""
    scales, zeros = unpack_groups(weight.groups.T)
    columns = torch.arange(weight.in_features, device=weight.words.device)
    group = columns // weight.group_size
    codes = unpack_words(weight.words, weight.in_features).to(torch.int32)
    return ((codes - zeros[:, group]).float() * scales[:, group]).to(dtype)


def w4a16_linear(x: Tensor, weight: Int4Weight, bias: Tensor | None) -> Tensor:
    """Returns x @ matrix.T + bias for a matrix of 4-bit codes.

    A weight is (code - zero) * scale, rounded once to the dtype of `x`. Products are summed in
    float32.

    Args:
        x: [num_tokens, in_features].
        weight: [out_features, in_features].
        bias: [out_features], the dtype of `x`.

    Returns:
        [num_tokens, out_features], the dtype of `x`.
    """
    return F.linear(x, dequantise(weight, x.dtype), bias)

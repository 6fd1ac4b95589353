"""Rotary position embedding (Su et al., 2021) and the scalings that need no look at the input.

The table holds the cosine and signed sine of every position in the model's dtype, computed in
float32 as transformers does. A step looks its positions up once for all layers.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpu_worker.layers.weights import Placement
from signalbox_kernels import ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, inv_freq: Tensor) -> Tensor:
        wavelength = 2 * math.pi / inv_freq
        low_wavelength = self.original_max_position / self.low_freq_factor
        high_wavelength = self.original_max_position / self.high_freq_factor
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        between = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        stretched = torch.where(wavelength > low_wavelength, inv_freq / self.factor, between)
        return torch.where(wavelength < high_wavelength, inv_freq, stretched)


@dataclass(frozen=True, slots=True)
class FrequencyDivisors:
    """A divisor for each frequency: one for all (linear scaling), or the factors of a GGUF."""

    divisors: tuple[float, ...]

    def apply(self, inv_freq: Tensor) -> Tensor:
        return inv_freq / torch.tensor(self.divisors, dtype=torch.float32)


RopeScaling = Llama3Scaling | FrequencyDivisors


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Frequencies of the rotation."""

    theta: float
    scaling: RopeScaling | None = None

    def inv_freq(self, head_size: int) -> Tensor:
        """[head_size / 2] float32: radians per position."""
        exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        inv_freq = 1.0 / (self.theta**exponents)
        return inv_freq if self.scaling is None else self.scaling.apply(inv_freq)


class Angles(NamedTuple):
    """Cosine and signed sine of a step's positions; both [num_tokens, 1, head_size]."""

    cos: Tensor
    signed_sin: Tensor

    def rotate(self, heads: Tensor) -> None:
        """Rotates [num_tokens, num_heads, head_size] in place."""
        ops.rotary_embedding(heads, self.cos, self.signed_sin)


class RotaryEmbedding:
    """The table of all positions."""

    def __init__(
        self, config: RopeConfig, *, head_size: int, max_position: int, placement: Placement
    ) -> None:
        positions = torch.arange(max_position, dtype=torch.float32)
        radians = torch.outer(positions, config.inv_freq(head_size))
        cos, sin = radians.cos(), radians.sin()
        table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
        self._table = table.to(device=placement.device, dtype=placement.dtype)

    def __call__(self, positions: Tensor) -> Angles:
        """Looks up [num_tokens] int64 positions."""
        rows = self._table.index_select(0, positions)
        return Angles(rows[:, :1], rows[:, 1:])

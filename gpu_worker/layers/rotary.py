"""Rotary position embedding (Su et al., 2021) and the scalings that need no look at the input.

The table holds the cosine and signed sine of every position in the model's dtype, computed in
float32 as transformers does. A step looks its positions up once for all layers.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from gpu_worker.layers.weight_placement import Placement
from signalbox_kernels import ops


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, inv_freq: Tensor, theta: float) -> Tensor:
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

    def apply(self, inv_freq: Tensor, theta: float) -> Tensor:
        return inv_freq / torch.tensor(self.divisors, dtype=torch.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    """YaRN (Peng et al., 2023): divides the frequencies that turn seldom in the original context.

    Those that turn `beta_fast` times or more stay, those that turn `beta_slow` times or fewer are
    divided by `factor`, and a ramp over the index leads from one to the other.
    """

    factor: float
    original_max_position: int
    beta_fast: float
    beta_slow: float
    attention_factor: float
    """Multiplies rotated queries and keys."""

    def apply(self, inv_freq: Tensor, theta: float) -> Tensor:
        size = 2 * len(inv_freq)
        low = max(math.floor(self._index(self.beta_fast, size, theta)), 0)
        high = min(math.ceil(self._index(self.beta_slow, size, theta)), size - 1)
        indices = torch.arange(len(inv_freq), dtype=torch.float32)
        divided = ((indices - low) / max(high - low, 1e-3)).clamp(0, 1)
        return inv_freq / self.factor * divided + inv_freq * (1 - divided)

    def _index(self, turns: float, size: int, theta: float) -> float:
        """Returns the (fractional) index of the frequency with `turns` rotations in the original
        context."""
        wavelength = self.original_max_position / turns
        return size * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))


RopeScaling = Llama3Scaling | FrequencyDivisors | YarnScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Frequencies of the rotation."""

    theta: float
    scaling: RopeScaling | None = None

    def inv_freq(self, head_size: int) -> Tensor:
        """[head_size / 2] float32: radians per position."""
        exponents = torch.arange(0, head_size, 2, dtype=torch.int64).float() / head_size
        inv_freq = 1.0 / (self.theta**exponents)
        return inv_freq if self.scaling is None else self.scaling.apply(inv_freq, self.theta)

    def cos_sin(self, head_size: int, max_position: int) -> tuple[Tensor, Tensor]:
        """Returns the factors of each position, [max_position, head_size / 2] float32 each."""
        positions = torch.arange(max_position, dtype=torch.float32)
        radians = torch.outer(positions, self.inv_freq(head_size))
        factor = self.scaling.attention_factor if isinstance(self.scaling, YarnScaling) else 1.0
        return radians.cos() * factor, radians.sin() * factor


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
        cos, sin = config.cos_sin(head_size, max_position)
        table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
        self._table = table.to(device=placement.device, dtype=placement.dtype)

    def __call__(self, positions: Tensor) -> Angles:
        """Looks up [num_tokens] int64 positions."""
        rows = self._table.index_select(0, positions)
        return Angles(rows[:, :1], rows[:, 1:])

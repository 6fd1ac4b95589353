"""Rotary position embedding (Su et al., 2021): frequencies, and the scalings that need no look at
the input.

Frequencies and angles are float32 numbers, rounded where transformers rounds them; powers, cosines
and sines are computed in float64, so that they are correctly rounded on every machine.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from signalbox_worker.batch.arrays import FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    """Llama 3.1's stretch of the low frequencies."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_position: int

    def apply(self, inv_freq: FloatArray, theta: float) -> FloatArray:
        wavelength = 2 * math.pi / inv_freq
        low_wavelength = self.original_max_position / self.low_freq_factor
        high_wavelength = self.original_max_position / self.high_freq_factor
        smooth = (self.original_max_position / wavelength - self.low_freq_factor) / (
            self.high_freq_factor - self.low_freq_factor
        )
        between = (1 - smooth) * inv_freq / self.factor + smooth * inv_freq
        stretched = np.where(wavelength > low_wavelength, inv_freq / self.factor, between)
        return np.where(wavelength < high_wavelength, inv_freq, stretched)


@dataclass(frozen=True, slots=True)
class FrequencyDivisors:
    """A divisor for each frequency: one for all (linear scaling), or the factors of a GGUF."""

    divisors: tuple[float, ...]

    def apply(self, inv_freq: FloatArray, theta: float) -> FloatArray:
        divisors: FloatArray = np.array(self.divisors, dtype=np.float32)
        return np.divide(inv_freq, divisors)


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
    truncates: bool = True
    """True if the ramp's ends are whole indices."""

    def apply(self, inv_freq: FloatArray, theta: float) -> FloatArray:
        size = 2 * len(inv_freq)
        first = self._index(self.beta_fast, size, theta)
        last = self._index(self.beta_slow, size, theta)
        if self.truncates:
            first, last = math.floor(first), math.ceil(last)
        low, high = max(first, 0), min(last, size - 1)
        indices = np.arange(len(inv_freq), dtype=np.float32)
        divided = np.clip((indices - low) / ((high - low) or 1e-3), 0, 1)
        mixed: FloatArray = inv_freq / self.factor * divided + inv_freq * (1 - divided)
        return mixed

    def _index(self, turns: float, size: int, theta: float) -> float:
        """Returns the (fractional) index of the frequency with `turns` rotations in the original
        context."""
        wavelength = self.original_max_position / turns
        return size * math.log(wavelength / (2 * math.pi)) / (2 * math.log(theta))


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    """LongRoPE (Ding et al., 2024): divisors for windows up to the original one, and others for
    longer windows.

    The window that is served chooses, once for all sequences: a cached key is not rotated again
    when its sequence grows.
    """

    short: tuple[float, ...]
    long: tuple[float, ...]
    original_max_position: int
    attention_factor: float
    """Multiplies rotated queries and keys."""

    def of_window(self, max_position: int) -> FrequencyDivisors:
        is_long = max_position > self.original_max_position
        return FrequencyDivisors(self.long if is_long else self.short)


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    """NTK-aware scaling: a larger base for windows longer than the original one.

    As with LongRoPE, the window that is served chooses, once for all sequences.
    """

    factor: float
    original: int

    def of_window(self, theta: float, size: int, max_position: int) -> float:
        stretch = self.factor * max(max_position, self.original) / self.original
        power = size / (size - 2)
        return float(theta * (stretch - (self.factor - 1)) ** power)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryScaling:
    """Llama 4's factors of rotated queries, which grow where the original window is passed."""

    beta: float
    original_max_position: int

    def factors(self, max_position: int) -> FloatArray:
        """Returns those of each position, [max_position] float32."""
        passed = np.arange(max_position) // self.original_max_position
        factors: FloatArray = (1 + self.beta * np.log1p(passed)).astype(np.float32)
        return factors


RopeScaling = Llama3Scaling | FrequencyDivisors | YarnScaling | LongRopeScaling | DynamicScaling


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeConfig:
    """Frequencies of the rotation."""

    theta: float
    scaling: RopeScaling | None = None
    num_rotated: int | None = None
    """First elements of each head that rotate, an even number; None is all."""

    def rotated(self, head_size: int) -> int:
        """Returns the number of a head's elements that rotate."""
        return head_size if self.num_rotated is None else self.num_rotated

    def inv_freq(self, head_size: int) -> FloatArray:
        """[rotated / 2] float32: radians per position, without the choice of a window."""
        size = self.rotated(head_size)
        exponents = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
        powers = np.power(self.theta, exponents.astype(np.float64)).astype(np.float32)
        inv_freq: FloatArray = np.reciprocal(powers)
        scaling = self.scaling
        assert not isinstance(scaling, LongRopeScaling | DynamicScaling)
        return inv_freq if scaling is None else scaling.apply(inv_freq, self.theta)

    @property
    def original_length(self) -> int | None:
        """Longest window without the factors of a longer one; None if no window changes any."""
        match self.scaling:
            case LongRopeScaling():
                return self.scaling.original_max_position
            case DynamicScaling():
                return self.scaling.original
        return None

    def _of_window(self, head_size: int, max_position: int) -> "RopeConfig":
        match self.scaling:
            case LongRopeScaling():
                return replace(self, scaling=self.scaling.of_window(max_position))
            case DynamicScaling():
                size = self.rotated(head_size)
                theta = self.scaling.of_window(self.theta, size, max_position)
                return replace(self, theta=theta, scaling=None)
        return self

    def is_finite(self, head_size: int, max_position: int) -> bool:
        """Says whether the window's frequencies are numbers."""
        try:
            with np.errstate(all="ignore"):
                rope = self._of_window(head_size, max_position)
                return bool(np.isfinite(rope.inv_freq(head_size)).all())
        except (ArithmeticError, ValueError):  # a logarithm of 0
            return False

    def cos_sin(self, head_size: int, max_position: int) -> tuple[FloatArray, FloatArray]:
        """Returns the factors of each position, [max_position, rotated / 2] float32 each."""
        positions = np.arange(max_position, dtype=np.float32)
        inv_freq = self._of_window(head_size, max_position).inv_freq(head_size)
        radians = np.outer(positions, inv_freq).astype(np.float64)
        factor = 1.0
        if isinstance(self.scaling, YarnScaling | LongRopeScaling):
            factor = self.scaling.attention_factor
        cos, sin = np.cos(radians).astype(np.float32), np.sin(radians).astype(np.float32)
        return cos * factor, sin * factor

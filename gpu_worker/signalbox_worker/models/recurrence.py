"""Sizes of recurrent layers, which keep a state of one size for each sequence, in float32.

A short convolution reads the last inputs of each channel. Behind one, the gated delta rule (Yang et
al., 2024) and Mamba-2 (Dao and Gu, 2024) keep a matrix for each head.
"""

from dataclasses import dataclass

_FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Recurrence:
    """Sizes of a recurrent layer; by itself it keeps the inputs of a convolution alone."""

    channels: int
    """Columns that pass the convolution."""
    kernel: int
    """Inputs of a channel that are summed, that of the token included."""
    conv_bias: bool
    proj_bias: bool
    """True if the products at both ends of the layer have biases."""

    @property
    def matrix_rows(self) -> int:
        """Rows of the matrices of all heads, which are those of keys; 0 without."""
        return 0

    @property
    def head_columns(self) -> int:
        """Columns of the matrix of each head."""
        return 0

    @property
    def matrix_columns(self) -> int:
        """Columns of these matrices together."""
        return 0

    @property
    def state_bytes(self) -> int:
        """Bytes that a layer keeps of a sequence."""
        inputs = (self.kernel - 1) * self.channels
        return _FLOAT_BYTES * (inputs + self.matrix_rows * self.matrix_columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConvolution(Recurrence):
    """A convolution whose inputs and results have factors of the token's own (LFM2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaRule(Recurrence):
    """The gated delta rule, whose heads of values share those of Q and K (Qwen3-Next)."""

    num_key_heads: int
    key_size: int
    num_value_heads: int
    value_size: int
    norm_eps: float
    """Epsilon of the norm of each value head behind the scan."""
    heads_in_turn: bool
    """True if value head i reads key head i % num_key_heads, as files of llama.cpp have them for
    Qwen3.5; False if as many neighbours read one."""

    @property
    def key_columns(self) -> int:
        return self.num_key_heads * self.key_size

    @property
    def value_columns(self) -> int:
        return self.num_value_heads * self.value_size

    @property
    def matrix_rows(self) -> int:
        return self.key_size

    @property
    def head_columns(self) -> int:
        return self.value_size

    @property
    def matrix_columns(self) -> int:
        return self.value_columns


@dataclass(frozen=True, slots=True, kw_only=True)
class Mamba2(Recurrence):
    """Mamba-2, whose heads share B and C in groups."""

    num_heads: int
    head_size: int
    num_groups: int
    """Groups of heads; the norm behind the scan has the same."""
    state_size: int
    norm_eps: float

    @property
    def inner_columns(self) -> int:
        return self.num_heads * self.head_size

    @property
    def matrix_rows(self) -> int:
        return self.state_size

    @property
    def head_columns(self) -> int:
        return self.head_size

    @property
    def matrix_columns(self) -> int:
        return self.inner_columns

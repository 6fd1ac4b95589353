"""Looks up the rotation of a step's positions, once for all layers.

The table holds the cosine and signed sine of every position in the model's dtype.
"""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from signalbox_kernels import ops
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.models.layers.weight_placement import Placement


class Rotation(Protocol):
    """Angles by position; satisfied by `RopeConfig`."""

    def cos_sin(self, head_size: int, max_position: int) -> tuple[FloatArray, FloatArray]:
        """Returns the factors of each position, [max_position, head_size / 2] float32 each."""
        ...


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
        self, config: Rotation, *, head_size: int, max_position: int, placement: Placement
    ) -> None:
        factors = config.cos_sin(head_size, max_position)
        cos, sin = map(torch.from_numpy, factors)
        table = torch.stack([torch.cat([cos, cos], -1), torch.cat([-sin, sin], -1)], dim=1)
        self._table = table.to(device=placement.device, dtype=placement.dtype)

    def __call__(self, positions: Tensor) -> Angles:
        """Looks up [num_tokens] int64 positions."""
        rows = self._table.index_select(0, positions)
        return Angles(rows[:, :1], rows[:, 1:])

"""RMSNorm (Zhang and Sennrich, 2019) and LayerNorm (Ba et al., 2016).

Computed as transformers does: in float32, then cast.
"""

from dataclasses import replace
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels import ops
from signalbox_worker.models.layers.weight_placement import Placement, WeightTarget, copy_checked


class RMSNorm:
    """Normalises the last dimension."""

    def __init__(self, size: int, *, eps: float, placement: Placement) -> None:
        self.weight = placement.empty(size, around=1.0)
        self.eps = eps

    def load_weight(self, tensor: Tensor) -> None:
        copy_checked(self.weight, tensor)

    def weight_targets(self, name: str) -> dict[str, WeightTarget]:
        """`name` is the norm's in the checkpoint."""
        return {f"{name}.weight": self.load_weight}

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self.weight, eps=self.eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds `x` to `residual` in place and returns the normalised sum."""
        return ops.fused_add_rms_norm(x, residual, self.weight, eps=self.eps)


class OffsetRMSNorm(RMSNorm):
    """RMSNorm whose checkpoint holds the weight less 1 (Gemma); weighs in float32."""

    def __init__(self, size: int, *, eps: float, placement: Placement) -> None:
        wide = replace(placement, dtype=torch.float32)
        super().__init__(size, eps=eps, placement=wide)

    def load_weight(self, tensor: Tensor) -> None:
        super().load_weight(tensor)
        self.weight += 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x.float(), self.weight, eps=self.eps).to(x.dtype)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(residual.add_(x))


class LayerNorm:
    """Normalises the last dimension, with a weight and a bias, a weight alone, or neither."""

    def __init__(
        self,
        size: int,
        *,
        eps: float,
        placement: Placement,
        is_affine: bool = True,
        has_bias: bool = True,
    ) -> None:
        self._size = size
        self._eps = eps
        self._weight = placement.empty(size, around=1.0) if is_affine else None
        self._bias = placement.empty(size) if is_affine and has_bias else None

    def __call__(self, x: Tensor) -> Tensor:
        return F.layer_norm(x, (self._size,), self._weight, self._bias, self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds `x` to `residual` in place and returns the normalised sum."""
        return self(residual.add_(x))

    def weight_targets(self, name: str) -> dict[str, WeightTarget]:
        """`name` is the norm's in the checkpoint."""
        targets: dict[str, WeightTarget] = {}
        for end, values in (("weight", self._weight), ("bias", self._bias)):
            if values is not None:
                targets[f"{name}.{end}"] = partial(copy_checked, values)
        return targets

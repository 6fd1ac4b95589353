"""RMSNorm (Zhang and Sennrich, 2019), computed as transformers does: in float32, then cast."""

from torch import Tensor

from gpu_worker.layers.weights import Placement, copy_checked
from signalbox_kernels import ops


class RMSNorm:
    """Normalises the last dimension."""

    def __init__(self, size: int, *, eps: float, placement: Placement) -> None:
        self._weight = placement.empty(size)
        self._eps = eps

    def load_weight(self, tensor: Tensor) -> None:
        copy_checked(self._weight, tensor)

    def __call__(self, x: Tensor) -> Tensor:
        return ops.rms_norm(x, self._weight, eps=self._eps)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """Adds `x` to `residual` in place and returns the normalised sum."""
        return ops.fused_add_rms_norm(x, residual, self._weight, eps=self._eps)

"""How a checkpoint's tensor finds its place in a packed weight."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.config import ModelError

WeightTarget = Callable[[Tensor], None]
"""Takes a whole tensor of the checkpoint and keeps this rank's share of it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where weights live: their device and their dtype."""

    device: torch.device
    dtype: torch.dtype

    def empty(self, *shape: int, around: float = 0.0) -> Tensor:
        """Makes room for a weight, to be loaded.

        Args:
            around: what its values lie around, for who makes weights up (`loading.dummy`).
        """
        return torch.empty(shape, device=self.device, dtype=self.dtype)


def copy_checked(target: Tensor, source: Tensor) -> None:
    """Copies a shard into its place; shapes must agree."""
    if target.shape != source.shape:
        raise ModelError(
            f"a weight has shape {tuple(source.shape)} where {tuple(target.shape)} is expected; "
            "config.json does not belong to these weights"
        )
    target.copy_(source)

"""Copies a checkpoint's tensors to their places in packed weights."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from gpu_worker.config import ModelError
from signalbox_kernels import pages

WeightTarget = Callable[[Tensor], None]
"""Takes a whole tensor of the checkpoint and keeps this rank's share of it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and dtype of weights."""

    device: torch.device
    dtype: torch.dtype

    def empty(self, *shape: int, around: float = 0.0) -> Tensor:
        """Allocates a weight that is loaded later.

        Args:
            around: mean of the values that `loading.dummy` makes up.
        """
        if self.device.type == "cpu":
            size = torch.Size(shape).numel() * self.dtype.itemsize
            memory = torch.from_numpy(pages.empty((size,), np.dtype(np.uint8)))
            return memory.view(self.dtype).view(shape)
        return torch.empty(shape, device=self.device, dtype=self.dtype)


def copy_checked(target: Tensor, source: Tensor) -> None:
    """Copies a shard into its place. Raises ModelError if their shapes differ."""
    if target.shape != source.shape:
        raise ModelError(
            f"a weight has shape {tuple(source.shape)} where {tuple(target.shape)} is expected; "
            "config.json does not belong to these weights"
        )
    target.copy_(source)

"""Copies a checkpoint's tensors to their places in packed weights."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from signalbox_kernels import pages
from signalbox_worker.files.checkpoints.weight_names import check_shape

WeightTarget = Callable[[Tensor], None]
"""Takes a whole tensor of the checkpoint and keeps this rank's share of it."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Device and dtype of weights."""

    device: torch.device
    dtype: torch.dtype

    def empty(self, *shape: int, around: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        """Allocates a weight that is loaded later.

        Args:
            around: mean of the values that `loading.dummy_weights` makes up.
            dtype: type of codes or of scales of a quantised matrix, if it is one of these.
        """
        dtype = dtype or self.dtype
        if self.device.type == "cpu":
            size = torch.Size(shape).numel() * dtype.itemsize
            memory = torch.from_numpy(pages.empty((size,), np.dtype(np.uint8)))
            return memory.view(dtype).view(shape)
        return torch.empty(shape, device=self.device, dtype=dtype)


def checked_shape(tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    """Returns the tensor. Raises ModelError if it has another shape."""
    check_shape("a weight", tuple(tensor.shape), shape)
    return tensor


def copy_checked(target: Tensor, source: Tensor) -> None:
    """Copies a shard into its place. Raises ModelError if their shapes differ."""
    target.copy_(checked_shape(source, tuple(target.shape)))


def split_target(load: Callable[[Tensor, str], object], parts: Sequence[str]) -> WeightTarget:
    """Makes a target of several matrices, or biases, that stand one after another in a tensor.

    Args:
        load: takes each with the name of its part.
    """

    def target(tensor: Tensor) -> None:
        for part, rows in zip(parts, tensor.chunk(len(parts)), strict=True):
            load(rows, part)

    return target

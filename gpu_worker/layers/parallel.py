"""A process's place in a tensor-parallel group, and the two collectives that layers need.

The division of a transformer into column- and row-parallel halves follows Megatron-LM (Shoeybi et
al., 2019).
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.config import ModelError


@dataclass(frozen=True, slots=True)
class ParallelGroup:
    """Rank `rank` of `size`; at size 1 every collective is a no-op.

    Above size 1 the process must have joined torch.distributed's default group.
    """

    rank: int = 0
    size: int = 1

    def divide(self, count: int, what: str) -> int:
        """Returns this rank's share of `count`."""
        if count % self.size:
            raise ModelError(
                f"{what} ({count}) cannot be divided by tensor_parallel_size {self.size}"
            )
        return count // self.size

    def shard(self, tensor: Tensor, dim: int) -> Tensor:
        """Returns this rank's slice of `tensor`."""
        if self.size == 1:
            return tensor
        length = tensor.shape[dim] // self.size
        return tensor.narrow(dim, self.rank * length, length)

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sums over the ranks, in place."""
        if self.size > 1:
            torch.distributed.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Joins the ranks' tensors along the last dimension."""
        if self.size == 1:
            return tensor
        parts = [torch.empty_like(tensor) for _ in range(self.size)]
        torch.distributed.all_gather(parts, tensor.contiguous())
        return torch.cat(parts, dim=-1)

"""A rank's place in its worker: the layers of its stage, its tensor-parallel group, and the two
collectives that layers need.

The division of a transformer into column- and row-parallel halves follows Megatron-LM (Shoeybi et
al., 2019).
"""

from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from signalbox_worker.device.division import divided, first_kv_head, kv_heads_per_rank
from signalbox_worker.device.stage_layers import StageLayers, all_layers


class Collectives(Protocol):
    """Collective operations of a group's ranks. All ranks get the same bits."""

    num_joined: int
    """Number of collectives so far; ranks with equal numbers are at the same place."""

    spent_ns: int
    """Nanoseconds in collectives so far; 0 where a device runs them beside the host."""

    def all_reduce(self, tensor: Tensor) -> None:
        """Sums a tensor over the ranks, in place."""
        ...

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Returns every rank's tensor; all have the same shape."""
        ...

    def abort(self) -> None:
        """Makes the collectives that ranks wait in fail; safe from any thread."""
        ...


class NoCollectives:
    """Satisfies `Collectives` for one rank, which joins none."""

    num_joined = 0
    spent_ns = 0

    def all_reduce(self, tensor: Tensor) -> None:
        """Leaves the sum over one rank."""

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        return [tensor]

    def abort(self) -> None:
        """Ends no wait."""


@dataclass(frozen=True, slots=True)
class ParallelGroup:
    """Rank `rank` of `size` ranks; at size 1 the collectives do nothing."""

    rank: int = 0
    size: int = 1
    collectives: Collectives = field(default_factory=NoCollectives)
    layers: StageLayers | None = None
    """Layers of this rank's pipeline stage; None has all."""

    def stage(self, num_layers: int) -> StageLayers:
        """Returns this rank's layers of a model's."""
        return self.layers or all_layers(num_layers)

    def divide(self, count: int, what: str) -> int:
        """Returns this rank's share of `count`. Raises ModelError if there is a remainder."""
        return divided(count, what, self.size)

    @property
    def is_first(self) -> bool:
        """True for the shard that adds what only one may: biases of sums, and the draws."""
        return self.rank == 0

    def own(self, size: int) -> slice:
        """Returns this rank's rows or columns where each rank has `size` of them."""
        return slice(self.rank * size, (self.rank + 1) * size)

    def own_kv_heads(self, num_kv_heads: int) -> range:
        """Returns the K and V heads of this rank; ranks have one in common if there are too few."""
        first = first_kv_head(num_kv_heads, self.size, self.rank)
        return range(first, first + kv_heads_per_rank(num_kv_heads, self.size))

    def all_reduce(self, tensor: Tensor) -> Tensor:
        """Sums a tensor over the ranks, in place."""
        if self.size > 1:
            self.collectives.all_reduce(tensor)
        return tensor

    def all_gather(self, tensor: Tensor) -> Tensor:
        """Joins the ranks' tensors along the last dimension."""
        if self.size == 1:
            return tensor
        return torch.cat(self.collectives.all_gather(tensor.contiguous()), dim=-1)

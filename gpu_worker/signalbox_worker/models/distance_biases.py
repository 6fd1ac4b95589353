"""Biases of attention's scores by the distance of a key from its query."""

import torch
from torch import Tensor

from signalbox_worker.models.distance_buckets import distance_buckets
from signalbox_worker.models.layers import Placement
from signalbox_worker.models.layers.weight_placement import copy_checked


class DistanceBiases:
    """A learned bias for each bucket of distances and head, which all layers share."""

    of_distances: Tensor
    """[num_heads, 2 * num_positions - 1], from the farthest key before a query on."""

    def __init__(
        self, num_buckets: int, num_heads: int, *, num_positions: int, placement: Placement
    ) -> None:
        buckets = distance_buckets(num_buckets, num_positions)
        self._buckets = torch.from_numpy(buckets).to(placement.device)
        self._weight = placement.empty(num_buckets, num_heads)
        self.of_distances = placement.empty(num_heads, len(buckets))

    def load_weight(self, tensor: Tensor) -> None:
        copy_checked(self._weight, tensor)

    def finish(self) -> None:
        """Looks the distances up in the loaded table."""
        self.of_distances.copy_(self._weight[self._buckets].T)

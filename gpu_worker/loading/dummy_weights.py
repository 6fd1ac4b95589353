"""Made-up weights of models that PyTorch runs: speed and memory without a checkpoint.

Every weight that a model allocates is random from the start, so nothing is loaded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from gpu_worker.layers import Placement
from gpu_worker.loading.dummy_source import SPREAD


@dataclass(frozen=True, slots=True)
class DummyPlacement(Placement):
    """Fills every weight; the values are the same on every rank and at every start."""

    generator: torch.Generator

    def empty(self, *shape: int, around: float = 0.0) -> Tensor:
        weight = torch.empty(shape, device=self.device, dtype=self.dtype)
        return weight.uniform_(around - SPREAD, around + SPREAD, generator=self.generator)


def dummy_placement(placement: Placement) -> DummyPlacement:
    generator = torch.Generator(placement.device).manual_seed(0)
    return DummyPlacement(placement.device, placement.dtype, generator)

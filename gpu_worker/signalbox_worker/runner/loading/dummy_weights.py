"""Made-up weights of models that PyTorch runs: speed and memory without a checkpoint.

Every weight that a model allocates is random from the start, so nothing is loaded.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from signalbox_worker.models.layers import Placement
from signalbox_worker.runner.loading.dummy_source import SPREAD

_NAN = 127
"""The positive one in E4M3."""


@dataclass(frozen=True, slots=True)
class DummyPlacement(Placement):
    """Fills every weight; the values are the same in every process and at every start.

    Codes are any that may occur, and scales are alike.
    """

    generator: torch.Generator

    def empty(self, *shape: int, around: float = 0.0, dtype: torch.dtype | None = None) -> Tensor:
        weight = torch.empty(shape, device=self.device, dtype=dtype or self.dtype)
        if dtype is None:
            return weight.uniform_(around - SPREAD, around + SPREAD, generator=self.generator)
        if dtype.is_floating_point and dtype.itemsize > 1:
            return weight.fill_(around)
        codes = weight.view(torch.uint8)
        if not dtype.is_floating_point:
            codes.random_(0, 256, generator=self.generator)
            return weight
        codes.random_(0, 2 * _NAN, generator=self.generator)
        codes.add_(codes >= _NAN)  # all but the NaN of either sign
        return weight


def dummy_placement(placement: Placement) -> DummyPlacement:
    generator = torch.Generator(placement.device).manual_seed(0)
    return DummyPlacement(placement.device, placement.dtype, generator)

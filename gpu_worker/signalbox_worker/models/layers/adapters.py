"""LoRA adapters of linear layers (Hu et al., 2021), for batches that mix adapters and none.

The plain implementation, which the native program must equal: for each adapter of a batch its rows
are gathered, multiplied by A and B, and added to what the layer gives.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from signalbox_worker.batch.batch import NO_ADAPTER


class AdapterRows(NamedTuple):
    """The tokens of a batch that an adapter computes."""

    adapter: int
    rows: Tensor
    """[num_rows] int64."""


BatchAdapters = Sequence[AdapterRows]
"""The parts of a batch with adapters that layers read."""


def batch_adapters(adapters: NDArray[np.int32] | None, device: torch.device) -> BatchAdapters:
    """Args: adapters: [num_tokens], the adapter of each, or NO_ADAPTER; None if none has one."""
    if adapters is None:
        return ()
    return [
        AdapterRows(number, torch.from_numpy(np.flatnonzero(adapters == number)).to(device))
        for number in np.unique(adapters).tolist()
        if number != NO_ADAPTER
    ]


@dataclass(frozen=True, slots=True)
class LayerAdapter:
    """The matrices by which one adapter adds to some columns of a layer's output."""

    a: Tensor
    """[r, in_features]."""
    b: Tensor
    """[num_columns, r], with the scale in it."""
    first_column: int

    def add(self, x: Tensor, out: Tensor, rows: Tensor) -> None:
        added = (x.index_select(0, rows) @ self.a.T) @ self.b.T
        out.narrow(1, self.first_column, len(self.b)).index_add_(0, rows, added)

"""Formats of a linear layer's matrix: their contract, and the plain one.

A format takes what a checkpoint has of each part of a layer, packs the parts of this shard one
below the other, and multiplies. What a checkpoint calls its tensors, and what they stand for, is in
`signalbox_worker.files.quantised`.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from signalbox_kernels.torch.linear import PackedWeight, pack_weight
from signalbox_worker.files.quantised.form import WEIGHT
from signalbox_worker.models.layers.weight_placement import Placement, checked_shape


@dataclass(frozen=True, slots=True)
class MatrixPart:
    """A matrix of the checkpoint in a layer's own, and this shard of it."""

    start: int
    """Row of the layer's matrix that its first row becomes."""
    rows: slice
    columns: slice
    """Columns of the whole matrix that this shard holds."""
    whole: tuple[int, int]
    """Rows and columns of the checkpoint's matrix."""

    @property
    def num_rows(self) -> int:
        return int(self.rows.stop - self.rows.start)

    @property
    def num_columns(self) -> int:
        return int(self.columns.stop - self.columns.start)


class Matrix(Protocol):
    """A matrix [out_features, in_features] of this shard, filled part by part."""

    def load(self, tensors: Mapping[str, Tensor], part: MatrixPart) -> None:
        """Takes the whole tensors of a part, by the ends of their names.

        `WEIGHT` alone, in floats, is a plain matrix. Raises ModelError for tensors of another
        shape.
        """
        ...

    def finish(self) -> None:
        """Packs the matrix, after all parts are loaded."""
        ...

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        """Returns x @ matrix.T + bias, in the dtype of x, [num_tokens, in_features]."""
        ...


MatrixFormat = Callable[[Sequence[MatrixPart], Placement], Matrix]
"""Makes an empty matrix for a layer's parts; it allocates all that the matrix takes."""


def shape_of(parts: Sequence[MatrixPart]) -> tuple[int, int]:
    """Returns the rows and columns of a layer's matrix."""
    return sum(part.num_rows for part in parts), parts[0].num_columns


class PlainMatrix:
    """A matrix in the model's dtype. Satisfies `Matrix`."""

    def __init__(self, parts: Sequence[MatrixPart], placement: Placement) -> None:
        self._raw: Tensor | None = placement.empty(*shape_of(parts))
        self._packed: PackedWeight | None = None

    def load(self, tensors: Mapping[str, Tensor], part: MatrixPart) -> None:
        assert self._raw is not None, "weights are loaded before finish()"
        weight = checked_shape(tensors[WEIGHT], part.whole)
        rows = self._raw.narrow(0, part.start, part.num_rows)
        rows.copy_(weight[part.rows, part.columns])

    def finish(self) -> None:
        assert self._raw is not None
        self._packed = pack_weight(self._raw)
        self._raw = None

    @property
    def weight(self) -> Tensor:
        """The matrix [out_features, in_features], which is not packed for a CPU."""
        assert self._packed is not None and not self._packed.is_packed
        return self._packed.weight

    def apply(self, x: Tensor, bias: Tensor | None) -> Tensor:
        assert self._packed is not None
        return self._packed.apply(x, bias)

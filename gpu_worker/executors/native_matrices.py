"""Builds a native program's matrices, if a fused one has parts of several types.

Files mix types: the K scheme of llama.cpp gives V more bits than Q and K. Neighbours of one type
become one matrix; those that cannot stand beside each other become floats.
"""

import logging
from itertools import groupby

import torch
from torch import Tensor

from gpu_worker.checkpoints.gguf_weights import dequantised
from gpu_worker.checkpoints.quantization import Quantization
from signalbox_kernels.program import PANEL
from signalbox_kernels.quantised import BlockType, Matrix, Quantised

logger = logging.getLogger(__name__)


class Matrices:
    """Decides in which format each matrix of a model is packed."""

    def __init__(self, dtype: torch.dtype, quantization: Quantization | None) -> None:
        self._dtype = dtype
        self._quantization = quantization

    def table(self, matrix: Matrix) -> Matrix:
        """Returns the embedding's or the head's matrix in its format."""
        return self._held(matrix, is_table=True)

    def one(self, parts: list[Matrix]) -> Matrix:
        """Returns all parts as one matrix."""
        runs = self._runs(parts)
        return runs[0] if len(runs) == 1 else self._as_floats(runs)

    def side_by_side(self, parts: list[Matrix]) -> list[Matrix]:
        """Returns the parts as few matrices; each but the last consists of whole panels."""
        runs = self._runs(parts)
        fits = all(run.shape[0] % PANEL == 0 for run in runs[:-1])
        return runs if fits else [self._as_floats(runs)]

    def _runs(self, parts: list[Matrix]) -> list[Matrix]:
        held = [self._held(part, is_table=False) for part in parts]
        return [_joined(list(run)) for _, run in groupby(held, key=_type_of)]

    def _held(self, matrix: Matrix, *, is_table: bool) -> Matrix:
        if self._quantization is None:
            return matrix
        return self._quantization.hold(matrix, is_table=is_table)

    def _as_floats(self, runs: list[Matrix]) -> Tensor:
        names = ", ".join(sorted({_type_of(run) for run in runs}))
        logger.info("a fused matrix has parts of types %s, and becomes floats", names)
        floats = [_values(run) if isinstance(run, Quantised) else run for run in runs]
        return torch.cat([values.to(self._dtype) for values in floats])


def _values(matrix: Quantised) -> Tensor:
    """[rows, columns] float32."""
    values = torch.from_numpy(dequantised(matrix.blocks.numpy(), matrix.type))
    return values[:, : matrix.shape[1]]


def _type_of(matrix: Matrix) -> str:
    if isinstance(matrix, Quantised):
        return BlockType(matrix.type).name
    return str(matrix.dtype).removeprefix("torch.")


def _joined(run: list[Matrix]) -> Matrix:
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, Quantised):
        shape = torch.Size((sum(part.shape[0] for part in run), first.shape[1]))
        parts = [part for part in run if isinstance(part, Quantised)]
        return Quantised(first.type, shape, lambda: torch.cat([part.blocks for part in parts]))
    return torch.cat([part for part in run if isinstance(part, Tensor)])

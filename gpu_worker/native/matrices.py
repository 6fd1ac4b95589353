"""Joins the matrices that a native program multiplies at once, if their types allow it.

Files mix types: the K scheme of llama.cpp gives V more bits than Q and K. Neighbours of one type
become one matrix; those that cannot stand beside each other become floats.
"""

import logging
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_worker.checkpoints.gguf_weights import dequantised
from signalbox_kernels.floats import AnyArray, dtype_name, to_dtype
from signalbox_kernels.program import PANEL
from signalbox_kernels.quantised import BlockType, Matrix, Quantised

logger = logging.getLogger(__name__)


def as_one(parts: list[Matrix], dtype: np.dtype[Any]) -> Matrix:
    """Returns all parts as one matrix, in floats of `dtype` if they have several types."""
    runs = _runs(parts)
    return runs[0] if len(runs) == 1 else _as_floats(runs, dtype)


def side_by_side(parts: list[Matrix], dtype: np.dtype[Any]) -> list[Matrix]:
    """Returns the parts as few matrices; each but the last consists of whole panels."""
    runs = _runs(parts)
    fits = all(run.shape[0] % PANEL == 0 for run in runs[:-1])
    return runs if fits else [_as_floats(runs, dtype)]


def _runs(parts: list[Matrix]) -> list[Matrix]:
    return [_joined(list(run)) for _, run in groupby(parts, key=_type_of)]


def _as_floats(runs: list[Matrix], dtype: np.dtype[Any]) -> AnyArray:
    names = ", ".join(sorted({_type_of(run) for run in runs}))
    logger.info("a fused matrix has parts of types %s, and becomes floats", names)
    floats = [_values(run) if isinstance(run, Quantised) else run for run in runs]
    return np.concatenate([to_dtype(values, dtype) for values in floats])


def _values(matrix: Quantised) -> NDArray[np.float32]:
    """[rows, columns]."""
    return dequantised(matrix.blocks, matrix.type)[:, : matrix.shape[1]]


def _type_of(matrix: Matrix) -> str:
    if isinstance(matrix, Quantised):
        return BlockType(matrix.type).name
    return dtype_name(matrix.dtype)


def _joined(run: list[Matrix]) -> Matrix:
    first = run[0]
    if len(run) == 1:
        return first
    if isinstance(first, Quantised):
        shape = (sum(part.shape[0] for part in run), first.shape[1])
        parts = [part for part in run if isinstance(part, Quantised)]
        return Quantised(first.type, shape, lambda: np.concatenate([part.blocks for part in parts]))
    return np.concatenate([part for part in run if not isinstance(part, Quantised)])

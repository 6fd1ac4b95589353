"""Matrices of checkpoints in FP8: codes in E4M3, and what their scales are of.

A value is code times scale, also where the checkpoint calls the scale an inverse.
"""

from collections.abc import Mapping

import numpy as np

from signalbox_kernels.floats import AnyArray, to_float32

BLOCK = 128
"""Rows and columns of a block with a scale of its own."""
WEIGHT, SCALE, BLOCK_SCALE = "weight", "weight_scale", "weight_scale_inv"

Shapes = Mapping[str, tuple[int, ...]]


def shape(shapes: Shapes) -> tuple[int, ...]:
    """Returns the shape of a matrix whose scale is of all or of rows; ValueError for others."""
    rows, columns = shapes[WEIGHT]
    if shapes[SCALE] not in ((), (1,), (1, 1), (rows,), (rows, 1)):
        raise ValueError
    return rows, columns


def decode(tensors: Mapping[str, AnyArray]) -> AnyArray:
    """Returns a matrix whose scale is of all or of rows."""
    return to_float32(tensors[WEIGHT]) * to_float32(tensors[SCALE]).reshape(-1, 1)


def shape_of_blocks(shapes: Shapes) -> tuple[int, ...]:
    """Returns the shape of a matrix in blocks; those at its ends may be smaller."""
    rows, columns = shapes[WEIGHT]
    if shapes[BLOCK_SCALE] != (-(-rows // BLOCK), -(-columns // BLOCK)):
        raise ValueError
    return rows, columns


def decode_blocks(tensors: Mapping[str, AnyArray]) -> AnyArray:
    """Returns a matrix in blocks."""
    values = to_float32(tensors[WEIGHT])
    scales = to_float32(tensors[BLOCK_SCALE])
    for row, of_columns in enumerate(scales):
        expanded = np.repeat(of_columns, BLOCK)[: values.shape[1]]
        values[row * BLOCK : (row + 1) * BLOCK] *= expanded
    return values

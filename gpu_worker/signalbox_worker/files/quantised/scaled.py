"""Matrices whose values are stored in 8 bits each, as E4M3 or whole numbers, beside their scales.

A value is code times scale, also where a checkpoint calls the scale an inverse. Scales are of a
matrix, of rows, of groups of columns, or of blocks of rows and columns; those at the ends may be
smaller. compressed-tensors may add a zero point, which is subtracted from the code.
"""

from collections.abc import Mapping
from functools import cache, partial

import numpy as np

from signalbox_kernels.floats import FLOAT8_E4M3, AnyArray, to_float32
from signalbox_kernels.storage import Storage
from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised import activations
from signalbox_worker.files.quantised.codes import ArrayLibrary, FloatCodes, IntegerCodes
from signalbox_worker.files.quantised.form import (
    FLOATS,
    INDICES,
    WEIGHT,
    QuantisedForm,
    Read,
    Shapes,
    Tensors,
)

BLOCK = 128
"""Rows and columns of a block with a scale of its own, in DeepSeek's form."""
SCALE, BLOCK_SCALE, ZERO_POINT = "weight_scale", "weight_scale_inv", "weight_zero_point"

_MIDDLE = 128
"""Is added to a code with a sign."""

Block = tuple[int, int]
"""Rows and columns that share a scale. 0 columns are all of them, or the whole matrix."""
ROW: Block = (1, 0)


@cache
def scaled_form(name: str, block: Block, *, scale: str = SCALE) -> QuantisedForm:
    """Returns the form of matrices with a scale for each block; `scale` ends its tensor's name.

    Codes are E4M3 under the name "fp8", else whole numbers.
    """
    is_by_groups = name != "fp8" and block[0] == 1
    codes = frozenset({FLOAT8_E4M3 if name == "fp8" else np.dtype(np.int8)})
    zeros = codes | FLOATS | INDICES
    return QuantisedForm(
        name=name,
        marker=scale,
        ends={
            WEIGHT: codes,
            scale: FLOATS,
            ZERO_POINT: zeros,
            activations.SCALE: FLOATS,
            activations.ZERO_POINT: zeros,
        },
        shape=partial(_shape, block=block, scale=scale),
        decode=partial(decode, block=block, scale=scale),
        group_size=block[1] or None,
        unpack=partial(_unpack, scale=scale) if is_by_groups else None,
        storage=Storage.E4M3 if name == "fp8" else Storage.INT8,
        float_codes=partial(_float_codes, block=block, scale=scale),
    )


def _shape(shapes: Shapes, read: Read, *, block: Block, scale: str) -> tuple[int, ...]:
    rows, columns = shapes[WEIGHT]
    of_scales = -(-rows // block[0]), -(-columns // block[1]) if block[1] else 1
    of_matrix = {of_scales, of_scales[:1], (), (1,), (1, 1)}
    of_blocks = {of_scales, (of_scales[0], 1, of_scales[1], 1)}  # the latter of ModelOpt
    allowed = of_blocks if block[1] else of_matrix
    for end in {scale, ZERO_POINT} & shapes.keys():
        if shapes[end] not in allowed:
            raise ValueError
    return rows, columns


def _unpack(tensors: Mapping[str, AnyArray], library: ArrayLibrary, *, scale: str) -> IntegerCodes:
    """Returns whole numbers around the middle of those without a sign."""
    codes = np.ascontiguousarray(tensors[WEIGHT]).view(np.uint8) ^ np.uint8(_MIDDLE)
    scales = _of_rows(tensors[scale], len(codes))
    zeros = library.bytes_like(scales, _MIDDLE)
    if ZERO_POINT in tensors:
        points = _of_rows(to_float32(tensors[ZERO_POINT]), len(codes)) + _MIDDLE
        if not ((points >= 0) & (points < 2 * _MIDDLE) & (points == np.trunc(points))).all():
            raise ModelError(
                f"a matrix has a {ZERO_POINT} that is no code of 8 bits; fetch the checkpoint again"
            )
        zeros = points.astype(np.uint8)
    return IntegerCodes(codes, zeros, scales, None)


def _float_codes(tensors: Tensors, *, block: Block, scale: str) -> FloatCodes | None:
    """Returns the codes as they are; None if zero points are subtracted from them."""
    if ZERO_POINT in tensors and to_float32(tensors[ZERO_POINT]).any():
        return None
    codes = np.ascontiguousarray(tensors[WEIGHT]).view(np.uint8)
    scales, (row_step, column_step) = to_float32(tensors[scale]), block
    if column_step:
        of_blocks = scales.reshape(-(-len(codes) // row_step), -1)
        scales = np.repeat(of_blocks, min(row_step, len(codes)), axis=0)[: len(codes)]
    else:
        scales = np.broadcast_to(scales.reshape(-1, 1), (len(codes), 1))
    return FloatCodes(codes, scales, column_step or None)


def _of_rows(values: AnyArray, num_rows: int) -> AnyArray:
    """Returns [num_groups, num_rows] of values of a matrix, of rows or of groups."""
    by_row = values.reshape(num_rows if values.size >= num_rows else 1, -1)
    return np.broadcast_to(by_row, (num_rows, by_row.shape[1])).T


def decode(tensors: Mapping[str, AnyArray], *, block: Block, scale: str = SCALE) -> AnyArray:
    """Returns the matrix in float32."""
    values = to_float32(tensors[WEIGHT])
    if values is tensors[WEIGHT]:
        values = values.copy()
    if ZERO_POINT in tensors:
        values -= _expanded(tensors[ZERO_POINT], values.shape, block)
    values *= _expanded(tensors[scale], values.shape, block)
    return values


def _expanded(scales: AnyArray, shape: tuple[int, ...], block: Block) -> AnyArray:
    """Repeats scales of blocks for each value that no broadcasting covers."""
    (rows, columns), (row_step, column_step) = shape, block
    if not column_step:
        return to_float32(scales).reshape(-1, 1)
    expanded = to_float32(scales).reshape(-(-rows // row_step), -1)
    expanded = np.repeat(expanded, min(row_step, rows), axis=0)[:rows]
    return np.repeat(expanded, min(column_step, columns), axis=1)[:, :columns]

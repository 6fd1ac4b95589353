"""Quantised matrices of whole numbers as native programs store them, under scales of 16 bits.

A group of more than 128 columns, or of a whole row, is several of 128 with one scale. Columns that
an index puts into groups come in the order of their groups. What does not fit, such as scales that
16 bits do not hold, or groups that are not full but the last, is decoded.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import BFLOAT16, AnyArray, to_dtype, to_float32
from signalbox_kernels.storage import INTEGERS, StoredMatrix, integer_blocks
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.codes import NUMPY, IntegerCodes
from signalbox_worker.files.quantised.form import QuantisedForm


def integer_block_size(form: QuantisedForm) -> int | None:
    """Returns the columns of a block: the most that divide a group; None if no type is so small."""
    sizes = sorted({kind.block_size for kind in INTEGERS}, reverse=True)
    return next((size for size in sizes if not (form.group_size or size) % size), None)


def stored_integers(tensor: StoredTensor) -> StoredMatrix | None:
    """Returns a matrix as blocks of whole numbers; None if it is to be decoded."""
    form = tensor.form
    if form is None or form.unpack is None or (block_size := integer_block_size(form)) is None:
        return None
    matrix = form.unpack(tensor.read_parts(), NUMPY)
    group_size = form.group_size or tensor.shape[1]
    in_order = np.arange(tensor.shape[1]) // group_size
    order = _order(matrix, in_order)
    scales = _in_16_bits(matrix.scales)
    index = in_order if matrix.group_index is None or order is None else matrix.group_index[order]
    if scales is None or (index != in_order).any():
        return None
    storage = next(
        kind
        for kind in INTEGERS
        if (kind.bits, kind.block_size, kind.scale_dtype) == (form.bits, block_size, scales.dtype)
    )
    group_of_block = np.arange(0, tensor.shape[1], block_size) // group_size

    def read() -> NDArray[np.uint8]:
        codes = matrix.codes if order is None else matrix.codes[:, order]
        of_blocks = matrix.zeros.T[:, group_of_block], scales.T[:, group_of_block]
        return integer_blocks(codes, *of_blocks, storage)

    return StoredMatrix(storage, tensor.shape, read, order)


def _order(matrix: IntegerCodes, in_order: NDArray[np.int64]) -> NDArray[np.int32] | None:
    """Returns the columns in the order of their groups; None if they are in it."""
    index = matrix.group_index
    if index is None or (index == in_order).all():
        return None
    order: NDArray[np.int32] = np.argsort(index, kind="stable").astype(np.int32)
    return order


def _in_16_bits(scales: AnyArray) -> AnyArray | None:
    """Returns scales in a type of 16 bits that holds each of them; None if there is none."""
    exact = to_float32(scales)
    types: tuple[np.dtype[Any], ...] = (scales.dtype, np.dtype(np.float16), BFLOAT16)
    for dtype in types:
        if dtype.itemsize == 2:
            with np.errstate(over="ignore"):
                rounded = to_dtype(scales, dtype)
            if (to_float32(rounded) == exact).all():
                return rounded
    return None

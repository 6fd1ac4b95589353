"""Quantised matrices as native programs store them: codes and scales as they are.

Whole numbers have scales of 16 bits. A group of more than 128 columns, or of a whole row, is
several of 128 with one scale; columns that an index puts into groups come in the order of their
groups. Codes of floats (FP8, NF4, FP4, MXFP4, NVFP4, and whole numbers whose scales take 32 bits)
keep the scales of the file, one for each block of columns. What does not fit is decoded: groups of
other sizes, or not full but the last, and scales that 16 bits do not hold.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import BFLOAT16, AnyArray, to_dtype, to_float32
from signalbox_kernels.storage import (
    INTEGERS,
    Storage,
    StoredMatrix,
    float_code_blocks,
    integer_blocks,
    nvfp4_blocks,
)
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.codes import NUMPY, FloatCodes, IntegerCodes
from signalbox_worker.files.quantised.form import QuantisedForm

_END_OF_SCALES = 256.0
"""Scales of E4M3 are less: packed ones are times 2 ** 120."""
_NAN_OF_E4M3 = 0x7F
"""Bits of NaN beside the sign."""


def keeps_codes(checkpoint: QuantisedCheckpoint) -> bool:
    """Says whether native programs compute with the codes of at least one form."""
    return any(code_block_size(form) is not None for form in checkpoint.forms)


def code_block_size(form: QuantisedForm) -> int | None:
    """Returns the columns of a block that is kept as it is; None for a form that is decoded."""
    of_integers = _integer_block_size(form) if form.unpack is not None else None
    return of_integers or _float_block_size(form)


def stored_codes(tensor: StoredTensor) -> StoredMatrix | None:
    """Returns a matrix as blocks of codes; None if it is to be decoded."""
    return _stored_integers(tensor) or _stored_floats(tensor)


def _by_rows(
    storage: Storage,
    shape: tuple[int, ...],
    read: Callable[[slice], NDArray[np.uint8]],
    order: NDArray[np.int32] | None = None,
) -> StoredMatrix:
    """Returns a matrix whose blocks the threads that pack it make, of some rows at a time."""
    return StoredMatrix(
        storage,
        shape,
        lambda: read(slice(None)),
        order,
        read_rows=lambda start, end: read(slice(start, end)),
    )


def _float_block_size(form: QuantisedForm) -> int | None:
    if form.storage is None:
        return None
    size = form.storage.block_size
    is_whole = form.storage is Storage.NVFP4 or not (form.group_size or size) % size
    return size if is_whole else None


def _stored_floats(tensor: StoredTensor) -> StoredMatrix | None:
    form = tensor.form
    if form is None or form.storage is None or form.float_codes is None:
        return None
    block_size, storage = _float_block_size(form), form.storage
    matrix = form.float_codes(tensor.read_parts())
    if block_size is None or matrix is None:
        return None
    if storage is Storage.NVFP4:
        return _stored_nvfp4(tensor.shape, matrix)
    columns = tensor.shape[1]
    group_of_block = np.arange(0, columns, block_size) // (matrix.group_size or columns)
    scales = matrix.scales[:, group_of_block]
    if storage is Storage.E4M3:
        scales = _with_nan(matrix.codes, scales)
        if (np.abs(scales) >= _END_OF_SCALES).any():
            return None

    return _by_rows(
        storage,
        tensor.shape,
        lambda rows: float_code_blocks(matrix.codes[rows], scales[rows], storage),
    )


def _stored_nvfp4(shape: tuple[int, ...], matrix: FloatCodes) -> StoredMatrix | None:
    scales = matrix.scales.view(np.uint8)
    is_nan = ((scales & _NAN_OF_E4M3) == _NAN_OF_E4M3).any(axis=1)
    factors = np.where(is_nan, np.float32(np.nan), np.float32(matrix.factor))
    if abs(matrix.factor) >= _END_OF_SCALES:
        return None
    return _by_rows(
        Storage.NVFP4,
        shape,
        lambda rows: nvfp4_blocks(matrix.codes[rows], scales[rows], factors[rows]),
    )


def _with_nan(codes: NDArray[np.uint8], scales: AnyArray) -> AnyArray:
    """Returns the scales, NaN for blocks with a code of NaN: kernels decode that as 480. A product
    with the row is NaN either way."""
    is_nan = (codes & _NAN_OF_E4M3) == _NAN_OF_E4M3
    if not is_nan.any():
        return scales
    starts = np.arange(0, codes.shape[1], Storage.E4M3.block_size)
    return np.where(np.logical_or.reduceat(is_nan, starts, axis=1), np.float32(np.nan), scales)


def _integer_block_size(form: QuantisedForm) -> int | None:
    """Returns the columns of a block: the most that divide a group; None if no type is so small."""
    sizes = sorted({kind.block_size for kind in INTEGERS}, reverse=True)
    return next((size for size in sizes if not (form.group_size or size) % size), None)


def _stored_integers(tensor: StoredTensor) -> StoredMatrix | None:
    """Returns a matrix as blocks of whole numbers; None if it is to be decoded."""
    form = tensor.form
    if form is None or form.unpack is None or (block_size := _integer_block_size(form)) is None:
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

    def read(rows: slice) -> NDArray[np.uint8]:
        codes = matrix.codes[rows].copy("K")  # AWQ's lie a power of two apart, which caches dislike
        codes = codes if order is None else codes[:, order]
        of_blocks = matrix.zeros.T[rows][:, group_of_block], scales.T[rows][:, group_of_block]
        return integer_blocks(codes, *of_blocks, storage)

    return _by_rows(storage, tensor.shape, read, order)


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

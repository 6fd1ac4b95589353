"""Quantised matrices as native programs store them: codes and scales as they are.

Whole numbers are those of integer_matrices.py. Codes of floats (FP8, NF4, FP4, MXFP4, and whole
numbers whose scales take 32 bits) keep the scales of the file, one for each block of columns. What
does not fit, such as groups of other sizes, is decoded.
"""

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.storage import Storage, StoredMatrix, float_code_blocks
from signalbox_worker.files.checkpoints.integer_matrices import integer_block_size, stored_integers
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
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
    of_integers = integer_block_size(form) if form.unpack is not None else None
    return of_integers or _float_block_size(form)


def stored_codes(tensor: StoredTensor) -> StoredMatrix | None:
    """Returns a matrix as blocks of codes; None if it is to be decoded."""
    return stored_integers(tensor) or _stored_floats(tensor)


def _float_block_size(form: QuantisedForm) -> int | None:
    if form.storage is None:
        return None
    size = form.storage.block_size
    return None if (form.group_size or size) % size else size


def _stored_floats(tensor: StoredTensor) -> StoredMatrix | None:
    form = tensor.form
    if form is None or form.storage is None or form.float_codes is None:
        return None
    block_size, storage = _float_block_size(form), form.storage
    matrix = form.float_codes(tensor.read_parts())
    if block_size is None or matrix is None:
        return None
    columns = tensor.shape[1]
    group_of_block = np.arange(0, columns, block_size) // (matrix.group_size or columns)
    scales = matrix.scales[:, group_of_block]
    if storage is Storage.E4M3:
        scales = _with_nan(matrix.codes, scales)
        if (np.abs(scales) >= _END_OF_SCALES).any():
            return None

    def read() -> NDArray[np.uint8]:
        return float_code_blocks(matrix.codes, scales, storage)

    return StoredMatrix(storage, tensor.shape, read)


def _with_nan(codes: NDArray[np.uint8], scales: AnyArray) -> AnyArray:
    """Returns the scales, NaN for blocks with a code of NaN: kernels decode that as 480. A product
    with the row is NaN either way."""
    is_nan = (codes & _NAN_OF_E4M3) == _NAN_OF_E4M3
    if not is_nan.any():
        return scales
    starts = np.arange(0, codes.shape[1], Storage.E4M3.block_size)
    return np.where(np.logical_or.reduceat(is_nan, starts, axis=1), np.float32(np.nan), scales)

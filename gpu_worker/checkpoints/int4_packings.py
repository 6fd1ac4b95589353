"""Matrices of 4-bit codes in the packings of AutoAWQ and of GPTQ.

Eight codes are a word of 32 bits. AutoAWQ's GEMM packing (AutoAWQ: awq/modules/linear/gemm.py and
awq/utils/packing_utils.py) has words of eight neighbouring outputs, in the order 0, 2, 4, 6, 1, 3,
5, 7 from the lowest bits. GPTQ's (AutoGPTQ: auto_gptq/nn_modules/qlinear/qlinear_cuda.py) has words
of eight neighbouring columns, in ascending order, and `g_idx` names the group of each column. Zero
points are words of eight outputs in both. The first format of GPTQ stores them less one, which
GPTQModel (gptqmodel/utils/model.py, convert_gptq_v1_to_v2_format_module) takes back by an addition
to whole words: a zero point of 0 has borrowed from its neighbour.

What is here takes NumPy's arrays and PyTorch's tensors, which share the operations that it needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from gpu_worker.checkpoints.fp8 import Shapes
from gpu_worker.config import ModelError
from signalbox_kernels.floats import AnyArray, to_float32

QWEIGHT, QZEROS, SCALES, GROUP_INDEX = "qweight", "qzeros", "scales", "g_idx"
AWQ_ENDS = frozenset({QWEIGHT, QZEROS, SCALES})
GPTQ_ENDS = AWQ_ENDS | {GROUP_INDEX}
_IN_WORD = 8
_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Places in a word of its outputs."""
_ONE_IN_EACH = 0x11111111


@dataclass(frozen=True, slots=True)
class ArrayLibrary:
    """The operations that NumPy and PyTorch call by different names."""

    as_bytes: Callable[[Any], Any]
    """Returns the bytes of an array's values in order, in any shape."""
    stack: Callable[[list[Any], int], Any]
    """Joins arrays along a new dimension."""


NUMPY = ArrayLibrary(lambda words: words.view(np.uint8), np.stack)


@dataclass(frozen=True, slots=True)
class Int4Codes:
    """A matrix: (code - zero) * scale, by groups of columns."""

    codes: Any
    """[out_features, in_features] uint8, below 16."""
    zeros: Any
    """[num_groups, out_features] uint8, below 16."""
    scales: Any
    """[num_groups, out_features]."""
    group_index: Any | None
    """[in_features]: the group of each column; None if they are in order."""


def _codes_of(words: Any, library: ArrayLibrary) -> Any:
    """Returns [..., 8] uint8, from the lowest bits of each word. Raises ModelError."""
    if words.dtype.itemsize != 4:
        raise ModelError(
            f"codes of 4 bits are packed in {words.dtype}; use a checkpoint with words of 32 bits"
        )
    parts = library.as_bytes(words).reshape(*words.shape, 4)
    return library.stack([parts & 15, parts >> 4], -1).reshape(*words.shape, _IN_WORD)


def unpack_awq(tensors: Mapping[str, Any], library: ArrayLibrary) -> Int4Codes:
    """Takes qweight [in, out / 8], qzeros [groups, out / 8] and scales [groups, out]."""
    codes, zeros = (
        _codes_of(tensors[end], library)[..., _AWQ_PLACES].reshape(len(tensors[end]), -1)
        for end in (QWEIGHT, QZEROS)
    )
    return Int4Codes(codes.T, zeros, tensors[SCALES], None)


def unpack_gptq(
    tensors: Mapping[str, Any], library: ArrayLibrary, *, stores_zeros_less_one: bool
) -> Int4Codes:
    """Takes qweight [in / 8, out], qzeros [groups, out / 8], scales [groups, out], g_idx [in]."""
    words, of_zeros = tensors[QWEIGHT], tensors[QZEROS]
    codes = _codes_of(words, library).swapaxes(0, 1).reshape(words.shape[1], -1)
    if stores_zeros_less_one:
        of_zeros = of_zeros + _ONE_IN_EACH  # modulo 2 ** 32
    zeros = _codes_of(of_zeros, library).reshape(len(of_zeros), -1)
    return Int4Codes(codes, zeros, tensors[SCALES], tensors.get(GROUP_INDEX))


def decode(matrix: Int4Codes, *, group_size: int | None) -> AnyArray:
    """Returns a matrix of NumPy's arrays in float32."""
    num_columns = matrix.codes.shape[1]
    index = matrix.group_index
    if index is None:
        index = np.arange(num_columns) // (group_size or num_columns)
    elif index.min() < 0 or index.max() >= len(matrix.zeros):
        raise ModelError("a column is in a group that is not there; fetch the checkpoint again")
    values: AnyArray = matrix.codes.astype(np.float32)
    values -= matrix.zeros.T.astype(np.float32)[:, index]
    values *= to_float32(matrix.scales).T[:, index]
    return values


def awq_shape(shapes: Shapes, *, group_size: int | None) -> tuple[int, ...]:
    """Returns the shape of a matrix; ValueError for tensors that are none."""
    columns, words = shapes[QWEIGHT]
    return _checked(shapes, words * _IN_WORD, columns, group_size)


def gptq_shape(shapes: Shapes, *, group_size: int | None) -> tuple[int, ...]:
    """Returns the shape of a matrix; ValueError for tensors that are none."""
    words, rows = shapes[QWEIGHT]
    columns = words * _IN_WORD
    if shapes.get(GROUP_INDEX, (columns,)) != (columns,):
        raise ValueError
    return _checked(shapes, rows, columns, group_size)


def _checked(shapes: Shapes, rows: int, columns: int, group_size: int | None) -> tuple[int, int]:
    num_groups = -(-columns // (group_size or columns))
    of_groups = (num_groups, rows // _IN_WORD), (num_groups, rows)
    if (shapes[QZEROS], shapes[SCALES]) != of_groups or rows % _IN_WORD:
        raise ValueError
    return rows, columns

"""Matrices of whole numbers in groups, in the packings of AutoAWQ, GPTQ and compressed-tensors.

Codes of 4 or 8 bits lie in words of 32. AutoAWQ's GEMM packing (AutoAWQ: awq/modules/linear/gemm.py
and awq/utils/packing_utils.py) has words of eight neighbouring outputs, in the order 0, 2, 4, 6, 1,
3, 5, 7 from the lowest bits. GPTQ's (AutoGPTQ: auto_gptq/nn_modules/qlinear/qlinear_cuda.py) has
words of neighbouring columns, in ascending order, and `g_idx` names the group of each column. Zero
points are words of outputs in both. The first format of GPTQ stores them less one, which GPTQModel
(gptqmodel/utils/model.py, convert_gptq_v1_to_v2_format_module) takes back by an addition to whole
words: a zero point of 0 has borrowed from its neighbour. Symmetric files of either format exist
under the name of the other one; their zero points are the middle of the codes, whatever is stored.

compressed-tensors (compressors/pack_quantized) packs along rows in ascending order, and zero
points, which only asymmetric matrices have, along outputs. Both are stored around zero, so that the
middle of the codes is added.

What is here takes NumPy's arrays and PyTorch's tensors, which share the operations that it needs.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.config import ModelError

QWEIGHT, QZEROS, SCALES, GROUP_INDEX = "qweight", "qzeros", "scales", "g_idx"
WORD_BITS = 32
_AWQ_PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Places in a word of its outputs."""
_ONE_IN_EACH = {4: 0x11111111, 8: 0x01010101}
_MIDDLES = {4: (0x88888888, 0x77777777), 8: (0x80808080, 0x7F7F7F7F)}
"""Words of zero points that are the middle of the codes, as they are and less one."""


@dataclass(frozen=True, slots=True)
class ArrayLibrary:
    """The operations that NumPy and PyTorch call by different names."""

    as_bytes: Callable[[Any], Any]
    """Returns the bytes of an array's values in order, in any shape."""
    stack: Callable[[list[Any], int], Any]
    """Joins arrays along a new dimension."""
    bytes_like: Callable[[Any, int], Any]
    """Returns bytes of one value in the shape of an array."""


NUMPY = ArrayLibrary(
    lambda words: np.ascontiguousarray(words).view(np.uint8),
    np.stack,
    lambda array, value: np.full(array.shape, value, dtype=np.uint8),
)


@dataclass(frozen=True, slots=True)
class IntegerCodes:
    """A matrix: (code - zero) * scale, by groups of columns."""

    codes: Any
    """[out_features, in_features] uint8."""
    zeros: Any
    """[num_groups, out_features] uint8."""
    scales: Any
    """[num_groups, out_features]."""
    group_index: Any | None
    """[in_features]: the group of each column; None if they are in order."""


@dataclass(frozen=True, slots=True)
class FloatCodes:
    """A matrix: what codes stand for, times scales of groups of columns."""

    codes: NDArray[np.uint8]
    """[out_features, in_features], or of 4 bits two in a byte, the first one in its low half."""
    scales: AnyArray
    """[out_features, num_groups] float32, E4M3, or exponents plus 127 as bytes."""
    group_size: int | None
    """Columns that share a scale; None if a row does."""
    factor: float = 1.0
    """Is multiplied with each scale."""


def codes_of(words: Any, library: ArrayLibrary, bits: int) -> Any:
    """Returns [..., codes in a word] uint8, from the lowest bits of a word."""
    parts = library.as_bytes(words).reshape(*words.shape, 4)
    if bits == 8:
        return parts
    return library.stack([parts & 15, parts >> 4], -1).reshape(*words.shape, 8)


def unpack_awq(tensors: Mapping[str, Any], library: ArrayLibrary) -> IntegerCodes:
    """Takes qweight [in, out / 8], qzeros [groups, out / 8] and scales [groups, out]."""
    codes, zeros = (
        codes_of(tensors[end], library, 4)[..., _AWQ_PLACES].reshape(len(tensors[end]), -1)
        for end in (QWEIGHT, QZEROS)
    )
    return IntegerCodes(codes.T, zeros, tensors[SCALES], None)


def unpack_gptq(
    tensors: Mapping[str, Any],
    library: ArrayLibrary,
    *,
    bits: int = 4,
    is_symmetric: bool = False,
    stores_zeros_less_one: bool,
) -> IntegerCodes:
    """Takes qweight [words, out], qzeros [groups, words], scales [groups, out], g_idx [in]."""
    words, of_zeros = tensors[QWEIGHT], tensors[QZEROS]
    codes = codes_of(words, library, bits).swapaxes(0, 1).reshape(words.shape[1], -1)
    middle, less_one = (_as_int32(word) for word in _MIDDLES[bits])
    if is_symmetric and any(bool((of_zeros == word).all()) for word in (middle, less_one)):
        of_zeros = of_zeros * 0 + middle
    elif stores_zeros_less_one:
        of_zeros = of_zeros + _ONE_IN_EACH[bits]  # modulo 2 ** 32
    zeros = codes_of(of_zeros, library, bits).reshape(len(of_zeros), -1)
    return IntegerCodes(codes, zeros, tensors[SCALES], tensors.get(GROUP_INDEX))


def unpack_along_rows(
    tensors: Mapping[str, Any], library: ArrayLibrary, *, bits: int
) -> IntegerCodes:
    """Takes weight_packed [out, words], weight_scale [out, groups], weight_shape and perhaps
    weight_zero_point [words, groups] and weight_g_idx [in]."""
    rows, columns = map(int, tensors["weight_shape"])
    codes = codes_of(tensors["weight_packed"], library, bits).reshape(rows, -1)[:, :columns]
    scales = tensors["weight_scale"].reshape(rows, -1).T
    words = tensors.get("weight_zero_point")
    if words is None:
        zeros = library.bytes_like(scales, 1 << bits - 1)
    else:
        zeros = codes_of(words.T, library, bits).reshape(len(scales), -1)[:, :rows]
    index = tensors.get("weight_g_idx")
    is_given = index is not None and bool((index >= 0).all())  # -1 stands for none
    return IntegerCodes(codes, zeros, scales, index if is_given else None)


def decode(matrix: IntegerCodes, *, group_size: int | None) -> AnyArray:
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


def awq_shape(shapes: Mapping[str, tuple[int, ...]], *, group_size: int | None) -> tuple[int, int]:
    """Returns the shape of a matrix; ValueError for tensors that are none."""
    columns, words = shapes[QWEIGHT]
    return _checked(shapes, words * 8, columns, group_size, 4)


def gptq_shape(
    shapes: Mapping[str, tuple[int, ...]],
    *,
    group_size: int | None,
    bits: int,
    needs_index: bool,
) -> tuple[int, int]:
    """Returns the shape of a matrix; ValueError for tensors that are none."""
    words, rows = shapes[QWEIGHT]
    columns = words * (WORD_BITS // bits)
    if shapes.get(GROUP_INDEX, () if needs_index else (columns,)) != (columns,):
        raise ValueError
    return _checked(shapes, rows, columns, group_size, bits)


def _checked(
    shapes: Mapping[str, tuple[int, ...]],
    rows: int,
    columns: int,
    group_size: int | None,
    bits: int,
) -> tuple[int, int]:
    num_groups, in_word = -(-columns // (group_size or columns)), WORD_BITS // bits
    of_groups = (num_groups, rows // in_word), (num_groups, rows)
    if (shapes[QZEROS], shapes[SCALES]) != of_groups or rows % in_word:
        raise ValueError
    return rows, columns


def shape_along_rows(
    shapes: Mapping[str, tuple[int, ...]],
    read: Callable[[str], AnyArray],
    *,
    group_size: int | None,
    bits: int,
    has_zeros: bool,
) -> tuple[int, int]:
    """Returns the shape of a matrix of compressed-tensors; ValueError for tensors that are none."""
    rows, columns = map(int, read("weight_shape"))
    num_groups, in_word = -(-columns // (group_size or columns)), WORD_BITS // bits
    expected: dict[str, tuple[int, ...]] = {
        "weight_packed": (rows, -(-columns // in_word)),
        "weight_scale": (rows, num_groups),
    }
    if "weight_g_idx" in shapes:
        expected["weight_g_idx"] = (columns,)
    if has_zeros:
        expected["weight_zero_point"] = (-(-rows // in_word), num_groups)
    if any(shapes[end] != shape for end, shape in expected.items()):
        raise ValueError
    return rows, columns


def _as_int32(word: int) -> int:
    return word - (1 << WORD_BITS) if word >> 31 else word

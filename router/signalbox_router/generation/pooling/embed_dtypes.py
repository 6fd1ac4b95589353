"""Types in which clients may have the elements of embeddings, in place of float32.

Each vector is converted alone, so that its elements do not depend on the other inputs of a call:
int8 and uint8 are in units of the vector's own largest element, which keeps cosines. `binary` and
`ubinary` are those of sentence-transformers: signs of eight elements in a number.
"""

from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.pooling import Vector

EmbedDtype = Literal["float32", "float16", "bfloat16", "int8", "uint8", "binary", "ubinary"]
EMBED_DTYPES: tuple[EmbedDtype, ...] = get_args(EmbedDtype)
PACKED: tuple[EmbedDtype, ...] = ("binary", "ubinary")
Elements = NDArray[Any]


def check_dtype(dtype: EmbedDtype, *, size: int, field: str) -> None:
    """Raises InvalidArgument for the signs of vectors whose elements do not fill their numbers."""
    if dtype in PACKED and size % 8:
        others = ", ".join(one for one in EMBED_DTYPES if one not in PACKED)
        raise InvalidArgument(field, dtype, f"{others} for vectors of {size} elements")


def converted(vector: Vector, dtype: EmbedDtype) -> Elements:
    """Returns the elements as numbers of a type; those of bfloat16 are float32, rounded."""
    return _CONVERSIONS[dtype](vector)


def packed(vector: Vector, dtype: EmbedDtype, *, is_big_endian: bool = False) -> bytes:
    """Returns the elements' bytes."""
    found = converted(vector, dtype)
    if dtype == "bfloat16":
        found = (found.view(np.uint32) >> 16).astype(np.uint16)
    return found.astype(found.dtype.newbyteorder(">" if is_big_endian else "<")).tobytes()


def _to_float16(vector: Vector) -> Elements:
    most = np.finfo(np.float16).max  # JSON has no infinity
    return np.clip(vector, -most, most).astype(np.float16)


def _to_bfloat16(vector: Vector) -> Elements:
    bits = np.ascontiguousarray(vector, dtype=np.float32).view(np.uint32)
    to_even = bits + np.uint32(0x7FFF) + ((bits >> 16) & np.uint32(1))
    return (to_even & np.uint32(0xFFFF0000)).view(np.float32)


def _to_int8(vector: Vector) -> Elements:
    largest = np.abs(vector).max(axis=-1, keepdims=True)
    units = np.where(largest > 0, largest, np.float32(1)) / np.float32(127)
    return np.rint(vector / units).astype(np.int8)


def _to_uint8(vector: Vector) -> Elements:
    return (_to_int8(vector).astype(np.int16) + 128).astype(np.uint8)


def _to_ubinary(vector: Vector) -> Elements:
    return np.packbits(vector >= 0, axis=-1)


def _to_binary(vector: Vector) -> Elements:
    return (_to_ubinary(vector).astype(np.int16) - 128).astype(np.int8)


_CONVERSIONS: Mapping[EmbedDtype, Callable[[Vector], Elements]] = {
    "float32": lambda vector: vector,
    "float16": _to_float16,
    "bfloat16": _to_bfloat16,
    "int8": _to_int8,
    "uint8": _to_uint8,
    "binary": _to_binary,
    "ubinary": _to_ubinary,
}

"""Floats of checkpoints as NumPy arrays. NumPy has no bfloat16 and no E4M3: their bits have types
of their own.

Shapes, slices and copies of such an array are NumPy's; arithmetic is refused, as it would be that
of whole numbers.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]

BFLOAT16 = np.dtype([("bfloat16", "<u2")])
"""The upper half of a float32."""
FLOAT8_E4M3 = np.dtype([("float8_e4m3", "u1")])
"""A sign, 4 bits of exponent (bias 7) and 3 of mantissa; no infinity, and NaN is all ones."""
DTYPES: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "float16": np.dtype(np.float16),
    "bfloat16": BFLOAT16,
}
"""Types of floats that models are stored in, by name."""
_QUIET_NAN = np.uint32(0x7FC00000)


def _values_of_e4m3() -> NDArray[np.float32]:
    codes = np.arange(128)
    exponents, mantissas = codes >> 3, codes & 7
    normal = np.ldexp(1 + mantissas / 8, exponents - 7)
    values = np.where(exponents == 0, mantissas / 512, normal)
    values[127] = np.nan
    return np.concatenate([values, -values]).astype(np.float32)


_VALUES_OF_E4M3 = _values_of_e4m3()


def dtype_name(dtype: np.dtype[Any]) -> str:
    """Returns the name of an array's type, such as "bfloat16"."""
    return dtype.names[0] if dtype.names else dtype.name


def to_float32(values: AnyArray) -> NDArray[np.float32]:
    """Returns the values as float32, contiguous; those that are so already are not copied."""
    if values.dtype == FLOAT8_E4M3:
        return _VALUES_OF_E4M3[np.ascontiguousarray(values).view(np.uint8)]
    if values.dtype != BFLOAT16:
        return np.ascontiguousarray(values, dtype=np.float32)
    bits = np.ascontiguousarray(values).view(np.uint16).astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def to_bfloat16(values: AnyArray) -> AnyArray:
    """Returns the values rounded to bfloat16, ties to even; a NaN stays one."""
    if values.dtype == BFLOAT16:
        return np.ascontiguousarray(values)
    bits = to_float32(values).view(np.uint32)
    is_nan = (bits & np.uint32(0x7FFFFFFF)) > np.uint32(0x7F800000)
    rounded = bits + (np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1)))
    halves = np.where(is_nan, _QUIET_NAN, rounded) >> np.uint32(16)
    return halves.astype(np.uint16).view(BFLOAT16)


def to_dtype(values: AnyArray, dtype: np.dtype[Any]) -> AnyArray:
    """Returns the values in a type of `DTYPES`, rounded to nearest."""
    if dtype == BFLOAT16:
        return to_bfloat16(values)
    return to_float32(values).astype(dtype, copy=False)

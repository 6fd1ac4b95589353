"""Packs numbers into little-endian `bytes` fields and back.

A column of n integers parses as one copy, six times faster than a repeated field. Lists are
packed by `struct`, which takes a third of the time of `array.array`, and unpacked by the latter: a
step of few sequences finds the caches cold, where numpy's many paths cost the most.
"""

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from signalbox_contract.errors import InvalidArgument

_Values = Sequence[int] | NDArray[np.integer]

_INT32, _INT64, _FLOAT32 = "i", "q", "f"
"""Codes of `array.array` and `struct`; dictionaries by dtype cost more than a short column."""
_DTYPES: dict[str, np.dtype[Any]] = {
    _INT32: np.dtype("<i4"),
    _INT64: np.dtype("<i8"),
    _FLOAT32: np.dtype("<f4"),
}
_SIZES = {_INT32: 4, _INT64: 8, _FLOAT32: 4}
_IS_BIG_ENDIAN = sys.byteorder == "big"


def pack_int32(values: _Values) -> bytes:
    """Raises struct.error for a list with a value that does not fit."""
    return _pack(values, _INT32)


def pack_int64(values: _Values) -> bytes:
    """Raises struct.error for a list with a value that does not fit."""
    return _pack(values, _INT64)


def pack_float32(values: Iterable[float] | NDArray[np.float32]) -> bytes:
    if not isinstance(values, np.ndarray):
        values = np.array(list(values))
    return _pack(values, _FLOAT32)


def unpack_int32(data: bytes, field: str = "column") -> NDArray[np.int32]:
    """Returns a read-only view of `data`. Raises InvalidArgument if an element is cut off."""
    return _unpack(data, _INT32, field)


def unpack_int64(data: bytes, field: str = "column") -> NDArray[np.int64]:
    """Returns a read-only view of `data`. Raises InvalidArgument if an element is cut off."""
    return _unpack(data, _INT64, field)


def int32_list(data: bytes, field: str = "column") -> list[int]:
    """Returns what `unpack_int32` does as a list."""
    return _list(data, _INT32, field)


def int64_list(data: bytes, field: str = "column") -> list[int]:
    """Returns what `unpack_int64` does as a list."""
    return _list(data, _INT64, field)


def unpack_float32(data: bytes, field: str = "column") -> NDArray[np.float32]:
    """Returns a read-only view of `data`. Raises InvalidArgument if an element is cut off."""
    return _unpack(data, _FLOAT32, field)


def _pack(values: _Values | NDArray[np.floating], code: str) -> bytes:
    if isinstance(values, np.ndarray):
        return values.astype(_DTYPES[code], copy=False).tobytes()
    return struct.pack(f"<{len(values)}{code}", *values)


def _list(data: bytes, code: str, field: str) -> list[int]:
    if not data:
        return []
    _check_size(data, _SIZES[code], field)
    column = array(code, data)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column.tolist()


def _unpack(data: bytes, code: str, field: str) -> NDArray[Any]:
    _check_size(data, _SIZES[code], field)
    return np.frombuffer(data, dtype=_DTYPES[code])


def _check_size(data: bytes, size: int, field: str) -> None:
    if len(data) % size:
        raise InvalidArgument(field, f"{len(data)} bytes", f"a multiple of {size} bytes")


class Column:
    """A column of numbers: a list, an array or packed bytes, converted only when it is read.

    The caller must not change a list or an array after it has made a column of it.
    """

    __slots__ = ("_array", "_code", "_data", "_list")

    def __init__(
        self, code: str, values: list[int] | NDArray[Any] | bytes, field: str = "column"
    ) -> None:
        """Raises InvalidArgument, which names `field`, if bytes are cut off."""
        self._code = code
        self._list: list[int] | None = None
        self._array: NDArray[Any] | None = None
        self._data: bytes | None = None
        if isinstance(values, np.ndarray):
            self._array = values
        elif isinstance(values, bytes):
            _check_size(values, _SIZES[code], field)
            self._data = values
        else:
            self._list = values

    def __len__(self) -> int:
        if self._list is not None:
            return len(self._list)
        if self._array is not None:
            return len(self._array)
        assert self._data is not None
        return len(self._data) // _SIZES[self._code]

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column):
            return NotImplemented
        return self._code == other._code and self.pack() == other.pack()  # by bits, NaN too

    def __hash__(self) -> int:
        return hash((self._code, self.pack()))

    def __repr__(self) -> str:
        return f"Column({self._code!r}, {self.tolist()})"

    def tolist(self) -> list[int]:
        """Returns the numbers as a list, of floats in a column of float32; not to be changed."""
        if self._list is None:
            if self._array is not None:
                self._list = self._array.tolist()
            else:
                assert self._data is not None
                self._list = _list(self._data, self._code, "column")
        return self._list

    def array(self) -> NDArray[Any]:
        """Returns the numbers as an array, which is not to be changed."""
        if self._array is None:
            if self._data is not None:
                self._array = np.frombuffer(self._data, dtype=_DTYPES[self._code])
            else:
                self._array = np.array(self._list, dtype=_DTYPES[self._code])
        return self._array

    def pack(self) -> bytes:
        """Raises struct.error for a list with a value that does not fit."""
        if self._data is None:
            values = self._array if self._list is None else self._list
            assert values is not None
            self._data = _pack(values, self._code)
        return self._data


def int64s(values: list[int] | NDArray[np.int64] | bytes, field: str = "column") -> Column:
    """Raises InvalidArgument, which names `field`, if bytes are cut off."""
    return Column(_INT64, values, field)


def int32s(values: list[int] | NDArray[np.int32] | bytes, field: str = "column") -> Column:
    """Raises InvalidArgument, which names `field`, if bytes are cut off."""
    return Column(_INT32, values, field)


def float32s(values: NDArray[np.float32] | bytes, field: str = "column") -> Column:
    """Raises InvalidArgument, which names `field`, if bytes are cut off."""
    return Column(_FLOAT32, values, field)


def check_length(field: str, length: int, expected: int) -> None:
    """Raises InvalidArgument if a column has not the length of the columns that it belongs to."""
    if length != expected:
        raise InvalidArgument(field, f"a column of {length}", f"a column of {expected}")


def check_lowest(field: str, values: list[int], lowest: int) -> None:
    """Raises InvalidArgument if a number of a column is below `lowest`."""
    if values and (found := min(values)) < lowest:
        raise InvalidArgument(field, found, f"at least {lowest}")

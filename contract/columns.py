"""Packs numbers into little-endian `bytes` fields and back.

A column of n integers parses as one copy, six times faster than a repeated field. Lists go through
`array`: a step of few sequences finds the caches cold, where numpy's many paths cost the most.
"""

import sys
from array import array
from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from contract.errors import InvalidArgument

_Values = Iterable[int] | NDArray[np.integer]

_INT32 = np.dtype("<i4")
_INT64 = np.dtype("<i8")
_FLOAT32 = np.dtype("<f4")
_TYPECODES = {_INT32: "i", _INT64: "q"}
_IS_BIG_ENDIAN = sys.byteorder == "big"


def pack_int32(values: _Values) -> bytes:
    """Raises OverflowError for a list with a value that does not fit."""
    return _pack(values, _INT32)


def pack_int64(values: _Values) -> bytes:
    """Raises OverflowError for a list with a value that does not fit."""
    return _pack(values, _INT64)


def pack_float32(values: Iterable[float]) -> bytes:
    return np.array(list(values), dtype=_FLOAT32).tobytes()


def unpack_int32(data: bytes) -> NDArray[np.int32]:
    """Returns a read-only view of `data`. Raises InvalidArgument if an element is cut off."""
    return _unpack(data, _INT32)


def unpack_int64(data: bytes) -> NDArray[np.int64]:
    """Returns a read-only view of `data`. Raises InvalidArgument if an element is cut off."""
    return _unpack(data, _INT64)


def int32_list(data: bytes) -> list[int]:
    """Returns what `unpack_int32` does as a list."""
    return _list(data, _INT32)


def int64_list(data: bytes) -> list[int]:
    """Returns what `unpack_int64` does as a list."""
    return _list(data, _INT64)


def unpack_float32(data: bytes) -> NDArray[np.float32]:
    """Returns a read-only view of `data`. Raises InvalidArgument if an element is cut off."""
    return _unpack(data, _FLOAT32)


def _pack(values: _Values, dtype: np.dtype[np.signedinteger]) -> bytes:
    if isinstance(values, np.ndarray):
        return values.astype(dtype, copy=False).tobytes()
    column = array(_TYPECODES[dtype], values)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column.tobytes()


def _list(data: bytes, dtype: np.dtype[np.signedinteger]) -> list[int]:
    if not data:
        return []
    _check_size(data, dtype)
    column = array(_TYPECODES[dtype], data)
    if _IS_BIG_ENDIAN:
        column.byteswap()
    return column.tolist()


def _unpack(data: bytes, dtype: np.dtype[Any]) -> NDArray[Any]:
    _check_size(data, dtype)
    return np.frombuffer(data, dtype=dtype)


def _check_size(data: bytes, dtype: np.dtype[Any]) -> None:
    size = dtype.itemsize
    if len(data) % size:
        raise InvalidArgument("column", f"{len(data)} bytes", f"a multiple of {size} bytes")


class Column:
    """A column of integers: a list, an array or packed bytes, converted only when it is read.

    The caller must not change a list or an array after it has made a column of it.
    """

    __slots__ = ("_array", "_data", "_dtype", "_list")

    def __init__(
        self,
        dtype: np.dtype[np.signedinteger],
        *,
        values: list[int] | None = None,
        array: NDArray[Any] | None = None,
        data: bytes | None = None,
    ) -> None:
        """Has exactly one of the three forms. Raises InvalidArgument if bytes are cut off."""
        if data is not None:
            _check_size(data, dtype)
        self._dtype, self._list, self._array, self._data = dtype, values, array, data

    def __len__(self) -> int:
        if self._list is not None:
            return len(self._list)
        if self._array is not None:
            return len(self._array)
        assert self._data is not None
        return len(self._data) // self._dtype.itemsize

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Column):
            return NotImplemented
        return self._dtype == other._dtype and self.tolist() == other.tolist()

    def __hash__(self) -> int:
        return hash((self._dtype, tuple(self.tolist())))

    def __repr__(self) -> str:
        return f"Column({self._dtype}, {self.tolist()})"

    def tolist(self) -> list[int]:
        """Returns the numbers as a list, which is not to be changed."""
        if self._list is None:
            if self._array is not None:
                self._list = self._array.tolist()
            else:
                assert self._data is not None
                self._list = _list(self._data, self._dtype)
        return self._list

    def array(self) -> NDArray[Any]:
        """Returns the numbers as an array, which is not to be changed."""
        if self._array is None:
            if self._data is not None:
                self._array = np.frombuffer(self._data, dtype=self._dtype)
            else:
                self._array = np.array(self._list, dtype=self._dtype)
        return self._array

    def pack(self) -> bytes:
        """Raises OverflowError for a list with a value that does not fit."""
        if self._data is None:
            values = self._array if self._list is None else self._list
            assert values is not None
            self._data = _pack(values, self._dtype)
        return self._data


def int64s(values: list[int] | NDArray[np.int64]) -> Column:
    return _column(values, _INT64)


def int32s(values: list[int] | NDArray[np.int32]) -> Column:
    return _column(values, _INT32)


def _column(values: list[int] | NDArray[Any], dtype: np.dtype[np.signedinteger]) -> Column:
    if isinstance(values, np.ndarray):
        return Column(dtype, array=values)
    return Column(dtype, values=values)


def int64_column(data: bytes) -> Column:
    """Raises InvalidArgument if an element is cut off."""
    return Column(_INT64, data=data)


def int32_column(data: bytes) -> Column:
    """Raises InvalidArgument if an element is cut off."""
    return Column(_INT32, data=data)


def check_lengths(field: str, expected: int, *lengths: int) -> None:
    """Raises InvalidArgument if columns that belong together differ in length."""
    for length in lengths:
        if length != expected:
            raise InvalidArgument(field, f"columns of {expected} and {length}", "equal lengths")

"""Reads the GGUF container: its fields, and where each tensor's bytes are.

Strings are decoded in one pass over the mapped bytes; a vocabulary takes a tenth of a second.
"""

import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.file_pages import read_pages
from signalbox_worker.files.checkpoints.json_file import dict_of_distinct
from signalbox_worker.files.hub.gguf_file_names import SPLIT_NAME

_VERSIONS = (2, 3)
_NUMBERS = ("<B", "<b", "<H", "<h", "<I", "<i", "<f", "<?", None, None, "<Q", "<q", "<d")
_STRING, _ARRAY = 8, 9
_MAX_DIMS = 8
_MAX_DEPTH = 8
"""Most levels of nested lists; models have one."""

T = TypeVar("T")
TensorInfo = tuple[str, tuple[int, ...], int, int]
"""Name, shape, type, and offset from where the tensors' bytes start."""


class _CutOffError(ValueError):
    """The bytes end before the head does."""

    def __init__(self) -> None:
        super().__init__("it is cut off")


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFTensor:
    """A tensor as it is stored."""

    name: str
    shape: tuple[int, ...]
    """Numbers of elements, the innermost dimension last."""
    type: GGMLQuantizationType
    path: Path
    offset: int
    num_bytes: int
    factors: tuple[float, ...] = ()
    """Factors of all values, or of those of each expert; empty for none."""

    @property
    def data(self) -> NDArray[np.uint8]:
        """[num_bytes], read anew each time: a mapped file would stay resident."""
        return self.rows(0, self.num_rows)

    @property
    def num_rows(self) -> int:
        """Rows of the innermost dimension."""
        return prod(self.shape[:-1])

    def rows(self, start: int, end: int) -> NDArray[np.uint8]:
        """Returns the bytes from a row to before another."""
        size = self.num_bytes // max(1, self.num_rows)
        with self.path.open("rb", buffering=0) as file:
            data = read_pages(file, self.offset + start * size, (end - start) * size)
        if data is None:
            raise ModelError(f"{self.path} ends in tensor {self.name!r}; fetch it again")
        return data

    def of_expert(self, index: int) -> "GGUFTensor":
        """Returns one expert's part of a tensor whose outermost dimension counts experts."""
        size = self.num_bytes // self.shape[0]
        start = self.offset + index * size
        own = self.factors[index : index + 1]
        return replace(self, shape=self.shape[1:], offset=start, num_bytes=size, factors=own)

    def factors_of(self, start: int, end: int) -> NDArray[np.float32]:
        """Returns the factors of some rows, [rows]."""
        factors = np.array(self.factors, dtype=np.float32)
        return np.repeat(factors, self.num_rows // len(factors))[start:end]


@dataclass(frozen=True, slots=True, kw_only=True)
class GGUFContent:
    """Contents of a file, or of all its splits."""

    fields: dict[str, Any]
    tensors: dict[str, GGUFTensor]


def read_gguf(path: Path) -> GGUFContent:
    """Reads a file and, if it is the first of several, the others too."""
    content = _read_file(path)
    count = _whole(content.fields, "split.count", path, default=1)
    if count < 2:
        return content
    tensors = dict(content.tensors)
    for other in _other_splits(path, content.fields, count):
        of_part = _read_file(other).tensors
        if double := sorted(tensors.keys() & of_part.keys()):
            first = tensors[double[0]].path
            raise ModelError(f"{double[0]!r} is in {first} and in {other}; fetch them again")
        tensors |= of_part
    expected = _whole(content.fields, "split.tensors.count", path, default=len(tensors))
    if len(tensors) != expected:
        raise ModelError(
            f"{path} and its other parts hold {len(tensors)} tensors of {expected}; "
            "they do not belong together"
        )
    return GGUFContent(fields=content.fields, tensors=tensors)


def head_length(start: bytes) -> int | None:
    """Returns the length of the head, before the tensors, of a file that begins with these bytes;
    None if they are too few to tell. What is no GGUF file has no more head than that."""
    cursor = _Cursor(start, Path())
    try:
        cursor.head()
    except _CutOffError:
        return None
    except (ValueError, LookupError, ArithmeticError):  # `read_gguf` says why
        return len(start)
    return cursor.at


def _other_splits(path: Path, fields: dict[str, Any], count: int) -> list[Path]:
    match = SPLIT_NAME.fullmatch(path.name)
    if match is None or int(match[3]) != count:
        raise ModelError(
            f"{path} is one of {count} parts; give them their names -00001-of-{count:05}.gguf"
        )
    parts = [path.with_name(f"{match[1]}-{i:05}-of-{count:05}.gguf") for i in range(1, count + 1)]
    if _whole(fields, "split.no", path, default=0) != 0 or path.name != parts[0].name:
        raise ModelError(f"{path} is not the first of its parts; give {parts[0].name}")
    missing = [part.name for part in parts if not part.is_file()]
    if missing:
        raise ModelError(f"{path} lacks its part {missing[0]}; fetch it again")
    return parts[1:]


def _whole(fields: dict[str, Any], key: str, path: Path, *, default: int) -> int:
    value = fields.get(key, default)
    if not isinstance(value, int):
        raise ModelError(f"{path} says {key} = {str(value)[:40]}, which is no whole number")
    return value


def _read_file(path: Path) -> GGUFContent:
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        with mapped:
            return _Cursor(mapped, path).content()
    except ModelError:
        raise
    except (ValueError, LookupError, ArithmeticError, OSError) as error:
        raise ModelError(f"{path} is no readable GGUF file ({error}); fetch it again") from None


def _layout(kind: int) -> str:
    """Returns the layout of a number. Raises ValueError for a type that GGUF does not have."""
    layout = _NUMBERS[kind] if kind < len(_NUMBERS) else None
    if layout is None:
        raise ValueError(f"a field has type {kind}, which is not known")
    return layout


class _Cursor:
    """Walks over a file's head."""

    def __init__(self, mapped: mmap.mmap | bytes, path: Path) -> None:
        self._bytes = mapped
        self._path = path
        self.at = 0
        self._depth = 0

    def content(self) -> GGUFContent:
        fields, infos = self.head()
        alignment = _whole(fields, "general.alignment", self._path, default=32)
        if alignment < 1 or alignment & (alignment - 1):
            raise ValueError(f"general.alignment is {alignment}, which is no power of two")
        start = -(-self.at // alignment) * alignment
        if odd := [name for name, *_, offset in infos if offset % alignment]:
            raise ValueError(f"tensor {odd[0]!r} begins at no multiple of {alignment}")
        tensors = [(info[0], self._tensor(start, *info)) for info in infos]
        return GGUFContent(fields=fields, tensors=dict_of_distinct(tensors))

    def head(self) -> tuple[dict[str, Any], list[TensorInfo]]:
        """Returns the fields, and what stands of each tensor before all of their bytes."""
        if self._read(4) != b"GGUF":
            raise ValueError("it does not begin with GGUF")
        version = self._number("<I")
        if int.from_bytes(version.to_bytes(4, "little"), "big") in _VERSIONS:
            raise ModelError(
                f"{self._path} is big-endian, for other processors; take a little-endian file"
            )
        if version not in _VERSIONS:
            raise ValueError(f"version {version} is not known")
        num_tensors, num_fields = self._number("<Q"), self._number("<Q")
        fields = dict_of_distinct(self._times(num_fields, self._field))
        return fields, self._times(num_tensors, self._tensor_info)

    def _times(self, count: int, read: Callable[[], T]) -> list[T]:
        if count > len(self._bytes):
            raise _CutOffError
        return [read() for _ in range(count)]

    def _read(self, count: int) -> bytes:
        end = self.at + count
        if end > len(self._bytes):
            raise _CutOffError
        taken = self._bytes[self.at : end]
        self.at = end
        return taken

    def _number(self, layout: str) -> Any:
        (value,) = struct.unpack(layout, self._read(struct.calcsize(layout)))
        return value

    def _string(self) -> str:
        return self._read(self._number("<Q")).decode(errors="replace")

    def _field(self) -> tuple[str, Any]:
        name = self._string()
        return name, self._value(self._number("<I"))

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._string()
        if kind == _ARRAY:
            return self._array(self._number("<I"), self._number("<Q"))
        return self._number(_layout(kind))

    def _array(self, kind: int, count: int) -> list[Any]:
        if kind in (_STRING, _ARRAY):
            return self._times(count, self._string if kind == _STRING else self._nested)
        dtype = np.dtype(_layout(kind))
        values: list[Any] = np.frombuffer(self._read(count * dtype.itemsize), dtype=dtype).tolist()
        return values

    def _nested(self) -> list[Any]:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise ValueError("its lists are nested too deep")
        values = self._array(self._number("<I"), self._number("<Q"))
        self._depth -= 1
        return values

    def _tensor_info(self) -> TensorInfo:
        name, num_dims = self._string(), self._number("<I")
        if num_dims > _MAX_DIMS:
            raise ValueError(f"tensor {name!r} has {num_dims} dimensions")
        shape = tuple(self._number("<Q") for _ in range(num_dims))[::-1]
        return name, shape, self._number("<I"), self._number("<Q")

    def _tensor(
        self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int
    ) -> GGUFTensor:
        tensor_type = GGMLQuantizationType(kind)
        block_size, block_bytes = GGML_QUANT_SIZES[tensor_type]
        if 0 in shape:
            raise ValueError(f"tensor {name!r} has no values")
        if not shape or shape[-1] % block_size:
            raise ValueError(f"tensor {name!r} does not divide into blocks of {block_size}")
        size = int(np.prod(shape, dtype=object)) // block_size * block_bytes
        if start + offset + size > len(self._bytes):
            raise ValueError(f"it is cut off in tensor {name!r}")
        return GGUFTensor(
            name=name,
            shape=shape,
            type=tensor_type,
            path=self._path,
            offset=start + offset,
            num_bytes=size,
        )

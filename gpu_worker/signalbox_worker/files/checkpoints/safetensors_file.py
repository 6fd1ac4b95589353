"""Reads safetensors files: their headers, and tensor by tensor, so that a file is never in memory
beside its weights.

The format: 8 bytes that hold the header's length, a JSON header with each tensor's dtype, shape and
offsets, then the tensors' bytes.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from signalbox_kernels.floats import BFLOAT16, FLOAT8_E4M3, AnyArray
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.file_pages import read_pages
from signalbox_worker.files.checkpoints.json_file import dict_of_distinct
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor

MAX_HEADER_BYTES = 100_000_000  # the format's own bound
_LENGTH_BYTES = 8
_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "F8_E4M3": FLOAT8_E4M3,
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


def stored_safetensors(
    path: Path, *, max_header_bytes: int = MAX_HEADER_BYTES
) -> Iterator[tuple[str, StoredTensor]]:
    """Yields every tensor, in the order of the file, unread. Raises ModelError."""
    with _reading(path), path.open("rb", buffering=0) as file:
        header, start = read_header(path, file, max_bytes=max_header_bytes)
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        shape, dtype = tuple(entry["shape"]), _DTYPES.get(entry["dtype"])
        read = partial(_read, path, start, name, entry)
        rows = partial(_read_rows, path, start, name, entry) if len(shape) > 1 else None
        yield name, StoredTensor(shape, read, dtype=dtype, read_rows=rows)


def _read(path: Path, start: int, name: str, entry: dict[str, Any]) -> AnyArray:
    shape = entry["shape"]
    return _read_rows(path, start, name, entry, 0, prod(shape[:-1])).reshape(shape)


def _read_rows(
    path: Path, start: int, name: str, entry: dict[str, Any], first: int, end: int
) -> AnyArray:
    dtype, width = _DTYPES.get(entry["dtype"]), prod(entry["shape"][-1:])
    if dtype is None:
        raise ModelError(f"{path.name}: {name} has dtype {entry['dtype']}, which is not supported")
    begin, behind = entry["data_offsets"]
    if prod(entry["shape"]) * dtype.itemsize != behind - begin:
        raise unreadable(path, f"{name} has another size than its shape")
    row_bytes = width * dtype.itemsize
    with _reading(path), path.open("rb", buffering=0) as file:
        data = read_pages(file, start + begin + first * row_bytes, (end - first) * row_bytes)
    if data is None:
        raise unreadable(path, "it ends early")
    return data.view(dtype).reshape(end - first, width)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Makes an error of the system a ModelError: a file may vanish meanwhile."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error.strerror or type(error).__name__) from None


def head_length(start: bytes) -> int | None:
    """Returns the length of the head, before the tensors, of a file that begins with these bytes;
    None if they are too few to tell."""
    if len(start) < _LENGTH_BYTES:
        return None
    return _LENGTH_BYTES + int.from_bytes(start[:_LENGTH_BYTES], "little")


def read_header(
    path: Path, file: FileIO, *, max_bytes: int = MAX_HEADER_BYTES
) -> tuple[dict[str, Any], int]:
    """Returns the header's tensors, and where the tensors' bytes start. Raises ModelError."""
    length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
    num_bytes = path.stat().st_size - _LENGTH_BYTES - length
    if length < 2 or num_bytes < 0:
        raise unreadable(path, "its header has no sound length")
    if length > max_bytes:
        raise unreadable(path, f"its header has {length} bytes, more than {max_bytes}")
    try:
        header = json.loads(file.read(length), object_pairs_hook=dict_of_distinct)
        tensors = {k: v for k, v in header.items() if k != "__metadata__"}
        for entry in tensors.values():
            begin, end = entry["data_offsets"]
            lengths = (*entry["shape"], begin, end)
            if not all(type(length) is int and length >= 0 for length in lengths):
                raise TypeError
            if not isinstance(entry["dtype"], str):
                raise TypeError
            if not 0 <= begin <= end <= num_bytes:
                raise unreadable(path, "it ends early")
        if max((one["data_offsets"][1] for one in tensors.values()), default=0) < num_bytes:
            raise unreadable(path, "it goes on after its tensors")  # as safetensors refuses it
    except ModelError:
        raise
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        raise unreadable(path, "its header is no description of tensors") from None
    return tensors, _LENGTH_BYTES + length


def unreadable(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path} cannot be read ({reason}); fetch it again")

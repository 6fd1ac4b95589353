"""Reads a safetensors file tensor by tensor, so that it is never in memory beside its weights.

The format: 8 bytes that hold the header's length, a
JSON header with each tensor's dtype, shape and offsets, then the tensors' bytes.
"""

import json
from collections.abc import Iterator
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from gpu_worker.config import ModelError
from gpu_worker.loading.pages import read_pages

_DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "I16": torch.int16,
    "I32": torch.int32,
    "I64": torch.int64,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "F32": torch.float32,
    "F64": torch.float64,
}
_MAX_HEADER_BYTES = 100_000_000  # the format's own bound


def read_safetensors(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yields every tensor, in the order of the file."""
    with path.open("rb", buffering=0) as file:
        header, start = _header(path, file)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            yield name, _tensor(path, file, start, name, entry)


def _header(path: Path, file: FileIO) -> tuple[dict[str, Any], int]:
    """Returns the header's tensors, and where the tensors' bytes start."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
        raise _unreadable(path, "its header has no sound length")
    try:
        header = json.loads(file.read(length))
        tensors = {k: v for k, v in header.items() if k != "__metadata__"}
        for entry in tensors.values():
            begin, end = entry["data_offsets"]
            if not 0 <= begin <= end <= path.stat().st_size - 8 - length:
                raise _unreadable(path, "it ends early")
    except ModelError:
        raise
    except (ValueError, AttributeError, TypeError, KeyError):
        raise _unreadable(path, "its header is no description of tensors") from None
    return tensors, 8 + length


def _tensor(path: Path, file: FileIO, start: int, name: str, entry: dict[str, Any]) -> Tensor:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ModelError(f"{path.name}: {name} has dtype {entry['dtype']}, which is not supported")
    begin, end = entry["data_offsets"]
    if prod(entry["shape"]) * dtype.itemsize != end - begin:
        raise _unreadable(path, f"{name} has another size than its shape")
    data = read_pages(file, start + begin, end - begin)
    if data is None:
        raise _unreadable(path, "it ends early")
    return data.view(dtype).view(entry["shape"])


def _unreadable(path: Path, reason: str) -> ModelError:
    return ModelError(f"{path} cannot be read ({reason}); fetch it again")

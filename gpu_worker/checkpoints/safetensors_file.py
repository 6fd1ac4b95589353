"""Reads a safetensors file tensor by tensor, so that it is never in memory beside its weights."""

from collections.abc import Iterator
from io import FileIO
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from gpu_worker.checkpoints.file_pages import read_pages
from gpu_worker.checkpoints.safetensors_header import read_header, unreadable
from gpu_worker.config import ModelError
from signalbox_kernels.floats import BFLOAT16, AnyArray

_DTYPES = {
    "BOOL": np.dtype(np.bool_),
    "U8": np.dtype(np.uint8),
    "I8": np.dtype(np.int8),
    "I16": np.dtype(np.int16),
    "I32": np.dtype(np.int32),
    "I64": np.dtype(np.int64),
    "F16": np.dtype(np.float16),
    "BF16": BFLOAT16,
    "F32": np.dtype(np.float32),
    "F64": np.dtype(np.float64),
}


def read_safetensors(path: Path) -> Iterator[tuple[str, AnyArray]]:
    """Yields every tensor, in the order of the file."""
    with path.open("rb", buffering=0) as file:
        header, start = read_header(path, file)
        for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
            yield name, _tensor(path, file, start, name, entry)


def _tensor(path: Path, file: FileIO, start: int, name: str, entry: dict[str, Any]) -> AnyArray:
    dtype = _DTYPES.get(entry["dtype"])
    if dtype is None:
        raise ModelError(f"{path.name}: {name} has dtype {entry['dtype']}, which is not supported")
    begin, end = entry["data_offsets"]
    if prod(entry["shape"]) * dtype.itemsize != end - begin:
        raise unreadable(path, f"{name} has another size than its shape")
    data = read_pages(file, start + begin, end - begin)
    if data is None:
        raise unreadable(path, "it ends early")
    return data.view(dtype).reshape(entry["shape"])

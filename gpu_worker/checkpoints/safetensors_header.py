"""Reads the header of a safetensors file, without PyTorch: names, dtypes, shapes, places.

The format: 8 bytes that hold the header's length, a JSON header with each tensor's dtype, shape and
offsets, then the tensors' bytes.
"""

import json
from io import FileIO
from pathlib import Path
from typing import Any

from gpu_worker.config import ModelError

_MAX_HEADER_BYTES = 100_000_000  # the format's own bound


def read_header(path: Path, file: FileIO) -> tuple[dict[str, Any], int]:
    """Returns the header's tensors, and where the tensors' bytes start. Raises ModelError."""
    length = int.from_bytes(file.read(8), "little")
    if not 2 <= length <= min(_MAX_HEADER_BYTES, path.stat().st_size - 8):
        raise unreadable(path, "its header has no sound length")
    try:
        header = json.loads(file.read(length))
        tensors = {k: v for k, v in header.items() if k != "__metadata__"}
        for entry in tensors.values():
            begin, end = entry["data_offsets"]
            if not all(isinstance(length, int) and length >= 0 for length in entry["shape"]):
                raise TypeError
            if not 0 <= begin <= end <= path.stat().st_size - 8 - length:
                raise unreadable(path, "it ends early")
    except ModelError:
        raise
    except (ValueError, AttributeError, TypeError, KeyError, RecursionError):
        raise unreadable(path, "its header is no description of tensors") from None
    return tensors, 8 + length


def unreadable(path: Path, reason: str) -> ModelError:
    """Returns the error for a file that is broken."""
    return ModelError(f"{path} cannot be read ({reason}); fetch it again")

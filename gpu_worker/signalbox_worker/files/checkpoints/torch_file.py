"""Reads PyTorch's own checkpoint files, as older models have them; code in them is never run."""

import pickle
import zipfile
from collections.abc import Iterator
from pathlib import Path

import torch

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.torch.tensors import as_array
from signalbox_worker.config import ModelError


def read_torch_file(path: Path) -> Iterator[tuple[str, AnyArray]]:
    """Yields every tensor of a state dictionary."""
    can_map = zipfile.is_zipfile(path)  # files older than PyTorch 1.6 are read whole
    try:
        tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=can_map)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError):
        raise ModelError(f"{path} holds no plain tensors; fetch it again") from None
    for name in list(tensors):
        yield name, as_array(tensors.pop(name).detach())

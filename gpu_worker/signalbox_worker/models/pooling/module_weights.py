"""Finds the tensors of pooling's modules, which are small, and reads them as float32."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_worker.batch.arrays import FloatArray
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints import weight_names
from signalbox_worker.files.checkpoints.safetensors_file import stored_safetensors
from signalbox_worker.files.checkpoints.stored_tensor import StoredTensor
from signalbox_worker.missing_packages import needing_pytorch

Stored = Mapping[str, StoredTensor]


def file_of_module(folder: Path) -> Path:
    """Returns the file with a module's weights. Raises ModelError if there is none."""
    for name in ("model.safetensors", "pytorch_model.bin"):
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"{folder} has no model.safetensors; fetch the model again")


def stored_in(file: Path) -> dict[str, StoredTensor]:
    """Returns the tensors of a module's file."""
    if file.suffix == ".safetensors":
        return dict(stored_safetensors(file))
    with needing_pytorch(f"{file} is in PyTorch's own format"):
        from signalbox_worker.files.checkpoints.torch_file import read_torch_file
    return {
        name: StoredTensor(values.shape, partial(_same, values), dtype=values.dtype)
        for name, values in read_torch_file(file)
    }


def read_weight(stored: Stored, name: str, shape: tuple[int, ...]) -> FloatArray:
    """Returns a tensor, also of a checkpoint of the bare model. Raises ModelError."""
    values = find(stored, name).read()
    if values.shape != shape:
        raise ModelError(
            f"{name} has shape {values.shape} where {shape} is expected; the configuration does "
            "not belong to these weights"
        )
    return np.ascontiguousarray(to_float32(values))


def find(stored: Stored, name: str) -> StoredTensor:
    """Returns a tensor, also of a checkpoint of the bare model. Raises ModelError."""
    found = weight_names.find(stored, name)
    if found is None:
        raise ModelError(f"weight {name!r} is missing; the model is incomplete")
    return found


def _same(values: AnyArray) -> AnyArray:
    return values

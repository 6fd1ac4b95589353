"""Makes tensors of GGUF's stored ones; the gguf package knows the quantised types.

A tensor is worked on in slices that stay in the CPU's cache, several at a time: the package alone
goes through groups of 16 rows, one after another.
"""

import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from gpu_worker.checkpoints.gguf_reader import GGUFTensor
from gpu_worker.config import ModelError
from signalbox_kernels.quantised import Quantised

_PLAIN = {
    GGMLQuantizationType.F32: torch.float32,
    GGMLQuantizationType.F16: torch.float16,
    GGMLQuantizationType.BF16: torch.bfloat16,
}
_SLICE_VALUES = 1 << 18
_MAX_THREADS = 8


def make_pool() -> ThreadPoolExecutor:
    """Returns the threads that `to_tensor` works with; NumPy lets go of the interpreter lock."""
    return ThreadPoolExecutor(min(_MAX_THREADS, os.cpu_count() or 1), "dequantise")


def to_tensor(stored: GGUFTensor, pool: ThreadPoolExecutor) -> Tensor:
    """Returns the values: of 16 bits where they are stored so, else float32."""
    plain = _PLAIN.get(stored.type)
    if plain is not None:
        return stored.data.view(plain).view(stored.shape)
    return _values(stored.data, stored.type, pool).view(stored.shape)


def dequantised(matrix: Quantised) -> Tensor:
    """Returns the values of blocks, [rows, columns] float32."""
    with make_pool() as pool:
        values = _values(matrix.blocks, GGMLQuantizationType(int(matrix.type)), pool)
    return values.view(matrix.shape[0], -1)[:, : matrix.shape[1]]


def _values(data: Tensor, kind: GGMLQuantizationType, pool: ThreadPoolExecutor) -> Tensor:
    """Dequantises [num_bytes] uint8 to [num_values] float32."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = data.contiguous().numpy().reshape(-1, block_bytes)
    values = np.empty(len(blocks) * block_size, dtype=np.float32)
    step = max(1, _SLICE_VALUES // block_size)

    def fill(first: int) -> None:
        taken = blocks[first : first + step].reshape(1, -1)
        start = first * block_size
        values[start : start + step * block_size] = dequantize(taken, kind)[0]

    try:
        for _ in pool.map(fill, range(0, len(blocks), step)):
            pass
    except NotImplementedError:
        raise ModelError(
            f"weights of type {kind.name} are not supported; use a file of another quantisation"
        ) from None
    return torch.from_numpy(values)

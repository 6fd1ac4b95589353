"""Makes arrays of floats of GGUF's tensors, or blocks; the gguf package knows the quantised types.

A tensor is worked on in slices that stay in the CPU's cache, several at a time: the package alone
goes through groups of 16 rows, one after another.
"""

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray

from signalbox_kernels.floats import BFLOAT16, AnyArray
from signalbox_kernels.storage import GROUP
from signalbox_worker.config import ModelError
from signalbox_worker.files.checkpoints.gguf.blocks import (
    held_blocks,
    is_held_as_stored,
    multiply_nvfp4,
)
from signalbox_worker.files.checkpoints.gguf.reader import GGUFTensor

_PLAIN: dict[GGMLQuantizationType, np.dtype[Any]] = {
    GGMLQuantizationType.F32: np.dtype(np.float32),
    GGMLQuantizationType.F16: np.dtype(np.float16),
    GGMLQuantizationType.BF16: BFLOAT16,
}
_SLICE_VALUES = 1 << 18
_MAX_THREADS = 8


def read_values(stored: GGUFTensor) -> AnyArray:
    """Returns the values: of 16 bits where they are stored so, else float32."""
    return read_rows(stored, 0, stored.num_rows).reshape(stored.shape)


def read_rows(stored: GGUFTensor, start: int, end: int) -> AnyArray:
    """Returns the values from a row to before another, [rows, columns]."""
    plain, data = _PLAIN.get(stored.type), stored.rows(start, end)
    values = _dequantised(data, stored.type) if plain is None else data.view(plain)
    values = values.reshape(end - start, stored.shape[-1])
    return values * stored.factors_of(start, end)[:, None] if stored.factors else values


def dtype_of(stored: GGUFTensor) -> np.dtype[Any]:
    """Returns the type of the values."""
    return _PLAIN.get(stored.type, np.dtype(np.float32))


def read_blocks(stored: GGUFTensor, start: int, end: int) -> NDArray[np.uint8]:
    """Returns the blocks of some rows as native programs hold them, [rows, bytes of a row]."""
    data = stored.rows(start, end)
    if not is_held_as_stored(stored.type):
        data = _changed(data, stored.type, np.dtype(np.uint8), held_blocks)
    if stored.factors:
        multiply_nvfp4(data, np.repeat(stored.factors_of(start, end), stored.shape[-1] // GROUP))
    return data.reshape(end - start, -1)


def _dequantised(data: NDArray[np.uint8], kind: GGMLQuantizationType) -> NDArray[np.float32]:
    """Returns the values of blocks, [num_values]."""

    def values(blocks: NDArray[np.uint8], kind: GGMLQuantizationType) -> NDArray[np.float32]:
        floats: NDArray[np.float32] = dequantize(blocks.reshape(1, -1), kind)
        return floats.reshape(len(blocks), -1)

    try:
        return _changed(data, kind, np.dtype(np.float32), values)
    except NotImplementedError:
        raise ModelError(
            f"weights of type {kind.name} are not supported; use a file of another quantisation"
        ) from None


def _changed(
    data: NDArray[np.uint8],
    kind: GGMLQuantizationType,
    dtype: np.dtype[Any],
    change: Callable[[NDArray[np.uint8], GGMLQuantizationType], AnyArray],
) -> AnyArray:
    """Returns what blocks become, each [blocks, as many values], one after another."""
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    blocks = data.reshape(-1, block_bytes)
    step = max(1, _SLICE_VALUES // block_size)
    if len(blocks) <= step:  # a part of a matrix, of which other threads have others
        return change(blocks, kind).reshape(-1)
    width = change(blocks[:1], kind).shape[1]
    out = np.empty((len(blocks), width), dtype=dtype)

    def fill(first: int) -> None:
        out[first : first + step] = change(blocks[first : first + step], kind)

    num_threads = min(_MAX_THREADS, os.cpu_count() or 1)
    # NumPy lets go of the interpreter lock
    with ThreadPoolExecutor(num_threads, "dequantise") as pool:
        list(pool.map(fill, range(0, len(blocks), step)))
    return out.reshape(-1)

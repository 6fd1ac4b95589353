"""Matrices of bitsandbytes: NF4 and FP4 in blocks of a flat matrix, and int8 by rows.

In 4 bits two codes are a byte, the first one in its high bits; `quant_map` has their values, and a
block its largest magnitude, `absmax`. Double quantisation codes these in 8 bits: a code's value in
`nested_quant_map` times the largest of its own block, plus an offset. A last tensor is JSON with
the shape and the sizes of blocks. In int8 a value is code times the row's `SCB` / 127; the
activations that LLM.int8() treats apart are no part of the checkpoint.
"""

import json
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from signalbox_kernels.floats import AnyArray, to_float32
from signalbox_kernels.storage import FLOATS_OF_4_BITS, Storage
from signalbox_worker.config import ModelError
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.codes import FloatCodes
from signalbox_worker.files.quantised.fields import Described, not_served, refuse_others
from signalbox_worker.files.quantised.form import (
    BYTES,
    FLOATS,
    WEIGHT,
    QuantisedForm,
    Read,
    Shapes,
    Tensors,
)

NAME = "bitsandbytes"
_READ = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type")
_HOW_MADE = (
    *("_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"),
    *("bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_skip_modules"),
    *("llm_int8_has_fp16_weight", "llm_int8_threshold"),
)
_STATE = "weight.quant_state.bitsandbytes__"
_MAP, _LARGEST = "weight.quant_map", "weight.absmax"
_FLOAT32 = frozenset({np.dtype(np.float32)})
_INT8 = frozenset({np.dtype(np.int8)})
_MAX_SIZE = 1 << 24
"""More rows, columns or values in a block than any matrix has."""
_NESTED_MAP, _NESTED_LARGEST = "weight.nested_quant_map", "weight.nested_absmax"


def bitsandbytes_checkpoint(described: Described) -> QuantisedCheckpoint:
    """One form for all modules; what has no codes was skipped."""
    refuse_others(described, NAME, (*_READ, *_HOW_MADE))
    in_4_bits, in_8_bits = (bool(described.get(name)) for name in _READ[:2])
    if in_4_bits == in_8_bits:
        raise not_served(NAME, "neither 4 nor 8 bits", "load_in_4bit or load_in_8bit")
    kind = str(described.get("bnb_4bit_quant_type") or "fp4")
    if in_4_bits and kind not in ("nf4", "fp4"):
        raise not_served(NAME, f"bnb_4bit_quant_type {kind[:40]!r}", "'nf4' or 'fp4'")
    form = _four_bits(kind) if in_4_bits else _EIGHT_BITS
    return QuantisedCheckpoint(NAME, (form,), lambda module: form, leaves_activations=in_8_bits)


def _four_bits(kind: str) -> QuantisedForm:
    end_of_state = f"{_STATE}{kind}"

    def shape(shapes: Shapes, read: Read) -> tuple[int, ...]:
        state = _state(read(end_of_state))
        _check_sizes(shapes, state)
        return state.shape

    return QuantisedForm(
        name=NAME,
        marker=end_of_state,
        ends={
            WEIGHT: BYTES | FLOATS,
            _MAP: _FLOAT32,
            _LARGEST: BYTES | _FLOAT32,
            _NESTED_MAP: _FLOAT32,
            _NESTED_LARGEST: _FLOAT32,
            end_of_state: BYTES,
        },
        shape=shape,
        decode=lambda tensors: _decode_four_bits(tensors, _state(tensors[end_of_state])),
        bits=4,
        group_size=64,
        storage=Storage[kind.upper()],
        float_codes=lambda tensors: _float_codes(tensors, Storage[kind.upper()]),
    )


@dataclass(frozen=True, slots=True)
class _State:
    """The contents of the last tensor."""

    shape: tuple[int, int]
    block_size: int
    outer_size: int
    """Blocks that share a largest magnitude of magnitudes."""
    offset: float
    is_nested: bool
    """True if magnitudes are codes, too."""


def _state(tensor: AnyArray) -> _State:
    """Raises ValueError or TypeError for what describes nothing."""
    try:
        described = json.loads(tensor.tobytes())
    except RecursionError:
        raise ValueError from None
    if not isinstance(described, dict):
        raise TypeError
    rows, columns = described.get("shape", ())
    block: Any = described.get("blocksize")
    outer: Any = described.get("nested_blocksize", 256)
    sizes = rows, columns, block, outer
    if not all(isinstance(size, int) and 0 < size <= _MAX_SIZE for size in sizes):
        raise ValueError
    offset = float(described.get("nested_offset", 0.0))
    return _State((rows, columns), block, outer, offset, "nested_blocksize" in described)


def _check_sizes(shapes: Shapes, state: _State) -> None:
    """Raises ValueError for tensors of other sizes than a matrix has."""
    num_codes = prod(state.shape)
    num_blocks = -(-num_codes // state.block_size)
    expected = {_MAP: (16,), _LARGEST: (num_blocks,)}
    if state.is_nested:
        expected |= {_NESTED_MAP: (256,), _NESTED_LARGEST: (-(-num_blocks // state.outer_size),)}
    num_bytes = -(-num_codes // 2)
    is_whole = prod(shapes[WEIGHT]) in (num_bytes, num_bytes // 2, num_bytes // 4)
    if not is_whole or any(shapes[end] != shape for end, shape in expected.items()):
        raise ValueError


def _decode_four_bits(tensors: Tensors, state: _State) -> AnyArray:
    packed = np.ascontiguousarray(tensors[WEIGHT]).view(np.uint8).reshape(-1)
    num_codes = prod(state.shape)
    if len(packed) != -(-num_codes // 2):
        raise ModelError("a matrix of bitsandbytes has not the codes of its shape; fetch it again")
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)
    values = to_float32(tensors[_MAP])[codes[:num_codes]]
    largest = _largest(tensors, state)
    values *= np.repeat(largest, min(state.block_size, num_codes))[:num_codes]
    return values.reshape(state.shape)


def _float_codes(tensors: Tensors, storage: Storage) -> FloatCodes | None:
    """Returns the codes of groups within rows; None if a block ends in another place, or if the
    codes stand for other values than the storage's."""
    state = _state(tensors[f"{_STATE}{storage.name.lower()}"])
    (rows, columns), size = state.shape, storage.block_size
    if state.block_size % size or columns % size:
        return None
    if not np.array_equal(to_float32(tensors[_MAP]), FLOATS_OF_4_BITS[storage]):
        return None
    packed = np.ascontiguousarray(tensors[WEIGHT]).view(np.uint8).reshape(rows, columns // 2)
    largest = np.repeat(_largest(tensors, state), state.block_size // size)
    scales = largest[: rows * columns // size].reshape(rows, -1)
    swapped = (packed >> np.uint8(4) | packed << np.uint8(4)).astype(np.uint8)
    return FloatCodes(swapped, scales, size)


def _largest(tensors: Tensors, state: _State) -> AnyArray:
    """Returns the largest magnitude of each block."""
    stored = tensors[_LARGEST]
    if (stored.dtype == np.uint8) is not state.is_nested:
        kind = "codes" if state.is_nested else "floats"
        raise ModelError(
            f"a matrix of bitsandbytes has an absmax that is no {kind}; fetch it again"
        )
    if not state.is_nested:
        return to_float32(stored)
    values = to_float32(tensors[_NESTED_MAP])[stored]
    outer = np.repeat(to_float32(tensors[_NESTED_LARGEST]), min(state.outer_size, len(stored)))
    values *= outer[: len(values)]
    values += np.float32(state.offset)
    return values


def _shape_of_int8(shapes: Shapes, read: Read) -> tuple[int, ...]:
    rows, columns = shapes[WEIGHT]
    if shapes["SCB"] != (rows,):
        raise ValueError
    return rows, columns


def _decode_int8(tensors: Tensors) -> AnyArray:
    values = to_float32(tensors[WEIGHT])
    values *= _scales_of_int8(tensors)
    return values


def _scales_of_int8(tensors: Tensors) -> AnyArray:
    """[rows, 1]."""
    scales: AnyArray = to_float32(tensors["SCB"])[:, None] / np.float32(127)
    return scales


_EIGHT_BITS = QuantisedForm(
    name=NAME,
    marker="SCB",
    ends={WEIGHT: _INT8, "SCB": FLOATS, "weight_format": BYTES},
    shape=_shape_of_int8,
    decode=_decode_int8,
    storage=Storage.INT8,
    float_codes=lambda tensors: FloatCodes(
        tensors[WEIGHT].view(np.uint8), _scales_of_int8(tensors), None
    ),
)

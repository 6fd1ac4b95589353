"""Matrices of bitsandbytes: NF4 and FP4 in blocks of a flat matrix, and int8 by rows.

In 4 bits two codes are a byte, the first one in its high bits; `quant_map` has their values, and a
block its largest magnitude, `absmax`. Double quantisation codes these in 8 bits: a code's value in
`nested_quant_map` times the largest of its own block, plus an offset. A last tensor is JSON with
the shape and the sizes of blocks. In int8 a value is code times the row's `SCB` / 127; the
activations that LLM.int8() treats apart are no part of the checkpoint.
"""

import json
from typing import Any

import numpy as np

from gpu_worker.config import ModelError
from gpu_worker.quantised.checkpoint import QuantisedCheckpoint
from gpu_worker.quantised.fields import Described, not_served, refuse_others
from gpu_worker.quantised.form import WEIGHT, QuantisedForm, Read, Shapes, Tensors
from signalbox_kernels.floats import AnyArray, to_float32

NAME = "bitsandbytes"
_READ = ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type")
_HOW_MADE = (
    *("_load_in_4bit", "_load_in_8bit", "bnb_4bit_compute_dtype", "bnb_4bit_quant_storage"),
    *("bnb_4bit_use_double_quant", "llm_int8_enable_fp32_cpu_offload", "llm_int8_skip_modules"),
    *("llm_int8_has_fp16_weight", "llm_int8_threshold"),
)
_STATE = "weight.quant_state.bitsandbytes__"
_MAP, _LARGEST = "weight.quant_map", "weight.absmax"
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
    return QuantisedCheckpoint(NAME, (form,), lambda module: form)


def _four_bits(kind: str) -> QuantisedForm:
    end_of_state = f"{_STATE}{kind}"

    def shape(shapes: Shapes, read: Read) -> tuple[int, ...]:
        rows, columns = _state(read(end_of_state))["shape"]
        return rows, columns

    return QuantisedForm(
        name=NAME,
        marker=end_of_state,
        ends=frozenset({WEIGHT, _MAP, _LARGEST, _NESTED_MAP, _NESTED_LARGEST, end_of_state}),
        shape=shape,
        decode=lambda tensors: _decode_four_bits(tensors, _state(tensors[end_of_state])),
        bits=4,
        group_size=64,
    )


def _state(tensor: AnyArray) -> dict[str, Any]:
    try:
        state: dict[str, Any] = json.loads(tensor.astype(np.uint8).tobytes())
        rows, columns = state["shape"]
        if not all(isinstance(size, int) and size > 0 for size in (rows, columns)):
            raise ValueError
    except (ValueError, KeyError, TypeError):
        raise ModelError(
            "a matrix of bitsandbytes has a quant_state that is no description; fetch it again"
        ) from None
    return state


def _decode_four_bits(tensors: Tensors, state: dict[str, Any]) -> AnyArray:
    packed = np.ascontiguousarray(tensors[WEIGHT]).view(np.uint8).reshape(-1)
    codes = np.stack([packed >> 4, packed & 15], axis=-1).reshape(-1)
    rows, columns = state["shape"]
    values = to_float32(tensors[_MAP])[codes[: rows * columns]]
    values *= np.repeat(_largest(tensors, state), int(state["blocksize"]))[: rows * columns]
    return values.reshape(rows, columns)


def _largest(tensors: Tensors, state: dict[str, Any]) -> AnyArray:
    """Returns the largest magnitude of each block."""
    stored = tensors[_LARGEST]
    if _NESTED_MAP not in tensors:
        return to_float32(stored)
    values = to_float32(tensors[_NESTED_MAP])[stored]
    outer = np.repeat(to_float32(tensors[_NESTED_LARGEST]), int(state["nested_blocksize"]))
    values *= outer[: len(values)]
    values += np.float32(state["nested_offset"])
    return values


def _shape_of_int8(shapes: Shapes, read: Read) -> tuple[int, ...]:
    rows, columns = shapes[WEIGHT]
    if shapes["SCB"] != (rows,):
        raise ValueError
    return rows, columns


def _decode_int8(tensors: Tensors) -> AnyArray:
    values = to_float32(tensors[WEIGHT])
    values *= to_float32(tensors["SCB"])[:, None] / np.float32(127)
    return values


_EIGHT_BITS = QuantisedForm(
    name=NAME,
    marker="SCB",
    ends=frozenset({WEIGHT, "SCB", "weight_format"}),
    shape=_shape_of_int8,
    decode=_decode_int8,
)

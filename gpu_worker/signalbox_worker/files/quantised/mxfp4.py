"""Matrices in MXFP4 (OCP Microscaling, 1.0): E2M1 in groups of 32 that share a power of two.

Two codes are a byte, the first one in its low bits; a scale is the exponent plus 127, or 255 for
NaN.
"""

import numpy as np

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.storage import FLOATS_OF_4_BITS, Storage
from signalbox_worker.files.quantised.checkpoint import QuantisedCheckpoint
from signalbox_worker.files.quantised.codes import FloatCodes
from signalbox_worker.files.quantised.fields import Described, refuse_others
from signalbox_worker.files.quantised.form import BYTES, QuantisedForm, Read, Shapes

GROUP = 32
VALUES = FLOATS_OF_4_BITS[Storage.MXFP4]
"""Value of each code."""
_NAN = 255
"""A scale that is none."""
_PACKED, _SCALE = "weight_packed", "weight_scale"
_BLOCKS, _SCALES = "blocks", "scales"


def packed_form(name: str) -> QuantisedForm:
    """Returns the form of compressed-tensors' matrices."""
    return QuantisedForm(
        name=name,
        marker=_PACKED,
        ends={_PACKED: BYTES, _SCALE: BYTES},
        shape=_shape,
        decode=lambda tensors: decode(tensors[_PACKED], tensors[_SCALE]),
        bits=4,
        group_size=GROUP,
        storage=Storage.MXFP4,
        float_codes=lambda tensors: FloatCodes(tensors[_PACKED], tensors[_SCALE], GROUP),
    )


def _shape(shapes: Shapes, read: Read) -> tuple[int, ...]:
    rows, num_bytes = shapes[_PACKED]
    if shapes[_SCALE] != (rows, 2 * num_bytes // GROUP) or 2 * num_bytes % GROUP:
        raise ValueError
    return rows, 2 * num_bytes


def gpt_oss_checkpoint(described: Described) -> QuantisedCheckpoint:
    """Returns the form of GPT-OSS: the matrices of all experts in one tensor each of blocks and
    scales, such as "experts.down_proj_blocks"; native programs take each expert's out of it."""
    refuse_others(described, "mxfp4", ("modules_to_not_convert", "dequantize"))
    form = QuantisedForm(
        name="mxfp4",
        marker=_BLOCKS,
        ends={_BLOCKS: BYTES, _SCALES: BYTES},
        shape=_shape_of_experts,
        decode=lambda tensors: decode_experts(tensors[_BLOCKS], tensors[_SCALES]),
        bits=4,
        group_size=GROUP,
        storage=Storage.MXFP4,
        float_codes=lambda tensors: FloatCodes(
            tensors[_BLOCKS].reshape(len(tensors[_BLOCKS]), -1), tensors[_SCALES], GROUP
        ),
    )
    return QuantisedCheckpoint("mxfp4", (form,), lambda module: form, separator="_")


def _shape_of_experts(shapes: Shapes, read: Read) -> tuple[int, ...]:
    *places, num_bytes = shapes[_BLOCKS]
    if shapes[_SCALES] != tuple(places) or 2 * num_bytes != GROUP or len(places) != 3:
        raise ValueError
    num_experts, rows, groups = places
    return num_experts, rows, groups * GROUP


def decode_experts(blocks: AnyArray, scales: AnyArray) -> AnyArray:
    """Returns [experts, rows, columns] float32, or those of one expert.

    Args:
        blocks: [experts, rows, groups, 16], two codes in each byte.
        scales: [experts, rows, groups].
    """
    groups = scales.shape[-1]
    values = decode(blocks.reshape(-1, groups * GROUP // 2), scales.reshape(-1, groups))
    return values.reshape(*scales.shape[:-1], -1)


def decode(packed: AnyArray, scales: AnyArray) -> AnyArray:
    """Returns float32 of codes [rows, columns / 2] and scales [rows, columns / 32]."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, GROUP)
    exponents = scales.astype(np.int32)[..., None] - 127
    values: AnyArray = np.ldexp(VALUES[codes], exponents).astype(np.float32)
    values[scales == _NAN] = np.nan
    return values.reshape(len(packed), -1)

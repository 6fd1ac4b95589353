"""Matrices in MXFP4 (OCP Microscaling, 1.0): E2M1 in groups of 32 that share a power of two.

Two codes are a byte, the first one in its low bits; a scale is the exponent plus 127.
"""

import numpy as np

from gpu_worker.quantised.form import BYTES, QuantisedForm, Read, Shapes
from signalbox_kernels.floats import AnyArray

GROUP = 32
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
VALUES = np.array([*_MAGNITUDES, *(-value for value in _MAGNITUDES)], dtype=np.float32)
"""Value of each code."""
_PACKED, _SCALE = "weight_packed", "weight_scale"


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
    )


def _shape(shapes: Shapes, read: Read) -> tuple[int, ...]:
    rows, num_bytes = shapes[_PACKED]
    if shapes[_SCALE] != (rows, 2 * num_bytes // GROUP) or 2 * num_bytes % GROUP:
        raise ValueError
    return rows, 2 * num_bytes


def decode(packed: AnyArray, scales: AnyArray) -> AnyArray:
    """Returns float32 of codes [rows, columns / 2] and scales [rows, columns / 32]."""
    codes = np.stack([packed & 15, packed >> 4], axis=-1).reshape(*scales.shape, GROUP)
    exponents = scales.astype(np.int32)[..., None] - 127
    values: AnyArray = np.ldexp(VALUES[codes], exponents).astype(np.float32)
    return values.reshape(len(packed), -1)

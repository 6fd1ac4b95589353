"""Matrices in NVFP4: E2M1 in groups of 16 with E4M3 scales, under one float32 of the whole matrix.

A value is code times (scale times factor). ModelOpt stores the factor (`weight_scale_2`),
compressed-tensors its reciprocal (`weight_global_scale`). Two codes are a byte, the first one in
its low bits.
"""

from functools import cache
from typing import Literal

import numpy as np

from signalbox_kernels.floats import FLOAT8_E4M3, AnyArray, to_float32
from signalbox_kernels.storage import FLOATS_OF_4_BITS, Storage
from signalbox_worker.files.quantised import activations
from signalbox_worker.files.quantised.codes import FloatCodes
from signalbox_worker.files.quantised.form import (
    BYTES,
    FLOATS,
    WEIGHT,
    QuantisedForm,
    Read,
    Shapes,
    Tensors,
)

GROUP = 16
VALUES = FLOATS_OF_4_BITS[Storage.MXFP4]
"""Value of each code."""
_SCALE = "weight_scale"
_CODES = {"compressed-tensors": "weight_packed", "modelopt": WEIGHT}
_FACTOR = {"compressed-tensors": "weight_global_scale", "modelopt": "weight_scale_2"}
_OF_INPUTS = {"compressed-tensors": "input_global_scale", "modelopt": activations.SCALE}
"""Tensor with the scale of inputs in 4 bits; none are rounded to these."""


@cache
def nvfp4_form(name: Literal["compressed-tensors", "modelopt"]) -> QuantisedForm:
    """Returns the form of a library's matrices."""
    codes, factor, of_inputs = _CODES[name], _FACTOR[name], _OF_INPUTS[name]

    def shape(shapes: Shapes, read: Read) -> tuple[int, ...]:
        rows, num_bytes = shapes[codes]
        is_whole = shapes[_SCALE] == (rows, 2 * num_bytes // GROUP) and not 2 * num_bytes % GROUP
        if not is_whole or shapes[factor] not in ((), (1,)):
            raise ValueError
        return rows, 2 * num_bytes

    def float_codes(tensors: Tensors) -> FloatCodes:
        of_matrix = to_float32(tensors[factor]).reshape(())
        whole = np.float32(1) / of_matrix if name == "compressed-tensors" else of_matrix
        return FloatCodes(tensors[codes], tensors[_SCALE], GROUP, float(whole))

    return QuantisedForm(
        name=name,
        marker=factor,
        ends={
            codes: BYTES,
            _SCALE: frozenset({FLOAT8_E4M3}),
            factor: FLOATS,
            of_inputs: FLOATS,
        },
        shape=shape,
        decode=lambda tensors: decode(float_codes(tensors)),
        bits=4,
        group_size=GROUP,
        storage=Storage.NVFP4,
        float_codes=float_codes,
    )


def decode(matrix: FloatCodes) -> AnyArray:
    """Returns [rows, columns] float32."""
    scales = to_float32(matrix.scales) * np.float32(matrix.factor)
    codes = np.stack([matrix.codes & 15, matrix.codes >> 4], axis=-1)
    values: AnyArray = VALUES[codes.reshape(*scales.shape, GROUP)] * scales[..., None]
    return values.reshape(len(scales), -1)

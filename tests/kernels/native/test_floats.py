"""Floats of checkpoints in NumPy arrays."""

import numpy as np
import pytest

from signalbox_kernels.floats import BFLOAT16, to_bfloat16, to_dtype, to_float32


def test_a_type_is_kept_or_converted() -> None:
    values = np.array([1.0, 2.5], dtype=np.float16)
    assert to_dtype(values, np.dtype(np.float16)).dtype == np.float16
    halves = to_dtype(values, BFLOAT16)
    assert to_float32(halves).tolist() == [1.0, 2.5]


def test_arithmetic_with_the_bits_of_bfloat16_is_refused() -> None:
    with pytest.raises(TypeError):
        to_bfloat16(np.ones(2, np.float32)) + 1.0

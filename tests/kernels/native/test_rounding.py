"""Rows are rounded to codes of 8 bits as a checkpoint prescribes, on every instruction set."""

from typing import Any

import numpy as np
import pytest

from signalbox_kernels.floats import FLOAT8_E4M3, AnyArray, to_dtype, to_float32
from signalbox_kernels.native import Isa, NativeUnavailable
from signalbox_kernels.op_parameters import Norm
from signalbox_kernels.rounding import Rounding
from signalbox_kernels.storage import Storage
from signalbox_kernels.structs import Element, Epilogue, Row
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_blocks, make_floats, values_of
from tests.kernels.native.programs import (
    ELEMENTS,
    Dtype,
    assert_same_bits,
    make_arrays,
    make_builder,
    make_program,
)
from tests.kernels.native.reference import wide

E4M3 = np.sort(to_float32(np.arange(127, dtype=np.uint8).view(FLOAT8_E4M3)))
"""All magnitudes."""
WIDTH = 200
"""Padded by 24 columns, and more than one group of 128."""
INT8, FP8 = Element.INT8, Element.FP8_E4M3
ROUNDINGS = {
    "int8 of tokens": Rounding(code=INT8),
    "int8 of tokens with zero points": Rounding(code=INT8, is_symmetric=False),
    "int8 of groups": Rounding(code=INT8, group_size=64),
    "static int8": Rounding(code=INT8, scale=0.013),
    "static int8 with a zero point": Rounding(code=INT8, scale=0.013, zero_point=-7),
    "fp8 of tokens": Rounding(code=FP8),
    "fp8 of groups": Rounding(code=FP8, group_size=128),
    "static fp8": Rounding(code=FP8, scale=0.004),
}


def nearest_e4m3(x: AnyArray) -> AnyArray:
    """Of two neighbours as near, the one with an even code."""
    size = np.abs(x)
    above = np.searchsorted(E4M3, size).clip(max=len(E4M3) - 1)
    below = (above - 1).clip(min=0)
    high, low = E4M3[above] - size, size - E4M3[below]
    is_low = (low < high) | ((low == high) & (below % 2 == 0))
    return np.copysign(np.where(is_low, E4M3[below], E4M3[above]), x)


def rounded(x: AnyArray, how: Rounding) -> AnyArray:
    """By compressed-tensors' formulas; its own results are in tests/gpu_worker/files/quantised."""
    size = how.group_size or x.shape[1]
    parts = [_rounded(x[:, i : i + size], how) for i in range(0, x.shape[1], size)]
    return np.concatenate(parts, axis=1)


def _rounded(x: AnyArray, how: Rounding) -> AnyArray:
    low = x.min(axis=1, keepdims=True).clip(max=0)
    high = x.max(axis=1, keepdims=True).clip(min=0)
    top, zero = np.float32(127.5 if how.code is INT8 else 448), np.float32(how.zero_point)
    scale = np.maximum(-low, high) / top
    if how.scale is not None:
        scale = np.full_like(low, how.scale)
    elif not how.is_symmetric:
        scale = (high - low) / np.float32(255)
    scale[scale == 0] = np.finfo(np.float32).eps
    if not how.is_symmetric:
        zero = np.round(-128 - low / scale)
    scaled = x / scale + zero
    is_int8 = how.code is INT8
    codes = np.round(scaled).clip(-128, 127) if is_int8 else nearest_e4m3(scaled.clip(-448, 448))
    return (codes - zero) * scale


def make_rows(dtype: Dtype) -> AnyArray:
    """Rows of all sizes and signs, of one value, of zeros, with one that is far larger."""
    rows = wide(make_floats(9, WIDTH))
    rows[0] *= 1e-3
    rows[1] = np.abs(rows[1])
    rows[2] = -np.abs(rows[2]) * 1e4
    rows[3] = 0
    rows[4] = 0.25
    rows[5, 17] = 3e3
    rows[6] = np.linspace(-448, 448, WIDTH) * np.float32(0.004)
    return to_dtype(rows, dtype)


def run(dtype: Dtype, isa: Isa, how: Rounding | None, x: AnyArray) -> AnyArray:
    """Returns rows as they are rounded, whether they are elements or floats."""
    builder = make_builder(dtype)
    raw, out, same = (builder.buffer(WIDTH) for _ in range(3))
    floats = builder.buffer(WIDTH, row=Row.FLOATS)
    builder.code(raw, out, rounding=how)
    builder.code(floats, same, rounding=how)
    program = make_program(builder, isa)
    rows = len(x)
    program.view(raw, width=WIDTH, num_tokens=rows, dtype=dtype)[:, :WIDTH] = x
    program.view(floats, width=WIDTH, num_tokens=rows, dtype=FLOAT32)[:, :WIDTH] = to_float32(x)
    program.run(make_arrays(rows))
    found = program.view(out, width=WIDTH, num_tokens=rows, dtype=dtype)
    assert_same_bits(program.view(same, width=WIDTH, num_tokens=rows, dtype=dtype), found)
    is_finite = np.isfinite(wide(x)).all(axis=1)
    assert not wide(found[is_finite, WIDTH:]).any()
    return found[:, :WIDTH].copy()


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_rows_without_a_rounding_stay_as_they_are(isa: Isa, dtype: Dtype) -> None:
    x = make_rows(dtype)
    assert_same_bits(run(dtype, isa, None, x), x)


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("how", ROUNDINGS.values(), ids=ROUNDINGS)
def test_rows_are_rounded_to_codes(isa: Isa, dtype: Dtype, how: Rounding) -> None:
    x = make_rows(dtype)
    expected = to_dtype(rounded(to_float32(x), how), dtype)
    np.testing.assert_array_equal(wide(run(dtype, isa, how, x)), wide(expected))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("how", ROUNDINGS.values(), ids=ROUNDINGS)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_makes_its_run_of_columns_nan(
    isa: Isa, how: Rounding, value: float
) -> None:
    x = make_rows(FLOAT32)
    x[7, 3] = value
    is_nan = np.isnan(run(FLOAT32, isa, how, x))
    expected = np.zeros_like(is_nan)
    expected[7, : how.group_size] = True
    np.testing.assert_array_equal(is_nan, expected)


CODED = {name: how for name, how in ROUNDINGS.items() if how.is_scaled_codes}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("how", CODED.values(), ids=CODED)
@pytest.mark.parametrize("kind", [Storage.INT8_G128_BF16, Storage.INT4_G64, Storage.Q8_0])
def test_products_of_codes_equal_those_of_the_rounded_rows(
    isa: Isa, how: Rounding, kind: Storage
) -> None:
    """Sums of bytes are exact; the rest is what summing some groups in float32 costs."""
    width, n = 256, 70
    weight = make_blocks(kind, n, width)
    builder = make_builder(FLOAT32)
    raw, codes = builder.buffer(width), builder.buffer(width, row=Row.CODES)
    out = builder.buffer(n, row=Row.FLOATS)
    builder.code(raw, codes, rounding=how)
    builder.linear(codes, out, weight, None, Epilogue.STORE)
    program = make_program(builder, isa)
    for count in (1, 5, 33):
        x = make_floats(count, width, seed=count)
        program.view(raw, width=width, num_tokens=count, dtype=FLOAT32)[:] = x
        program.run(make_arrays(count))
        found = program.view(out, width=n, num_tokens=count, dtype=FLOAT32)[:, :n]
        terms, values = rounded(x, how).astype(np.float64), values_of(weight).astype(np.float64)
        allowed = 2.0**-20 * (np.abs(terms) @ np.abs(values).T)
        assert (np.abs(found - terms @ values.T) <= allowed).all()


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("how", ROUNDINGS.values(), ids=ROUNDINGS)
def test_a_norm_rounds_what_it_writes(isa: Isa, dtype: Dtype, how: Rounding) -> None:
    """As a norm and a rounding in two ops do, but for values that lie between two codes."""
    width = 128
    builder = make_builder(dtype, hidden_size=width)
    residual = builder.buffer(width, row=Row.FLOATS)
    plain, out = builder.buffer(width), builder.buffer(width)
    weight = make_floats(width, seed=3)
    norm = Norm(weight=weight, eps=1e-5)
    builder.norm(residual, plain, norm)
    builder.norm(residual, out, norm, rounding=how)
    program = make_program(builder, isa)
    x = make_floats(7, width)
    program.view(residual, width=width, num_tokens=7, dtype=FLOAT32)[:] = x
    program.run(make_arrays(7))
    normed = program.view(plain, width=width, num_tokens=7, dtype=dtype)
    found = wide(program.view(out, width=width, num_tokens=7, dtype=dtype))
    is_near = np.isclose(found, rounded(to_float32(normed), how), rtol=1e-2, atol=1e-6)
    assert is_near.mean() > 0.9


@pytest.mark.parametrize(
    "fields",
    [
        {"code": FP8},
        {"code": INT8, "is_symmetric": False},
        {"code": INT8, "scale": 1.0, "zero_point": 3},
    ],
)
def test_only_whole_numbers_without_zero_points_are_multiplied_as_codes(
    fields: dict[str, Any],
) -> None:
    builder = make_builder(FLOAT32)
    raw, codes = builder.buffer(64), builder.buffer(64, row=Row.CODES)
    builder.code(raw, codes, rounding=Rounding(**fields))
    with pytest.raises(NativeUnavailable):
        make_program(builder, ISAS[0])

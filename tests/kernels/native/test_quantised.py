"""Products with quantised weights against what the blocks stand for, for every instruction set."""

import numpy as np
import pytest

from signalbox_kernels.floats import AnyArray
from signalbox_kernels.native import Isa
from signalbox_kernels.op_parameters import Norm
from signalbox_kernels.program import Program
from signalbox_kernels.storage import QUANTISED, Storage, StoredMatrix, quantise
from signalbox_kernels.structs import Epilogue, Row
from tests.kernels.native import reference
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_blocks, make_floats, values_of
from tests.kernels.native.programs import (
    ELEMENTS,
    Dtype,
    assert_near,
    assert_same_bits,
    make_arrays,
    make_builder,
    make_program,
)

ROWS = (1, 2, 3, 4, 5, 8, 11, 12, 13, 33, 200)  # more than matrix registers pass at once, too
MOST_ROWS = max(ROWS)
MOST_CODE = {Row.CODES: 127, Row.WIDE_CODES: 127 * 256 + 127}


def run(program: Program, x: AnyArray, *, x_buffer: int, out: int, n: int) -> AnyArray:
    """[rows, n] float32 of elements x [rows, k] in buffer `x_buffer`."""
    rows, k = x.shape
    program.view(x_buffer, width=k, num_tokens=MOST_ROWS, dtype=x.dtype)[:rows, :k] = x
    program.run(make_arrays(rows))
    return program.view(out, width=n, num_tokens=MOST_ROWS, dtype=FLOAT32)[:rows, :n].copy()


def assert_product(
    actual: AnyArray, x: AnyArray, weight: AnyArray, *, row: Row = Row.CODES, times: int = 1
) -> None:
    """Terms may be wrong by what rounding a product of two scales to half precision costs."""
    expected = times * reference.quantised_linear(x, weight, MOST_CODE[row])
    allowed = 1e-3 * times * reference.size_of_terms(x, weight) + 1e-5
    assert (np.abs(actual - expected) <= allowed).all()


@pytest.mark.parametrize("row", MOST_CODE)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", QUANTISED)
@pytest.mark.parametrize("n", [1, 70])
def test_products_equal_the_reference(isa: Isa, kind: Storage, row: Row, n: int) -> None:
    k = 3 * kind.block_size
    weight, bias = make_blocks(kind, n, k), make_floats(n, seed=1)
    builder = make_builder(FLOAT32)
    raw, codes = builder.buffer(k), builder.buffer(k, row=row)
    out = builder.buffer(n, row=Row.FLOATS)
    builder.code(raw, codes)
    builder.linear(codes, out, weight, bias, Epilogue.STORE)
    builder.linear(codes, out, weight, None, Epilogue.ADD)
    program = make_program(builder, isa)
    for rows in ROWS:
        x = make_floats(rows, k, seed=rows)
        actual = run(program, x, x_buffer=raw, out=out, n=n)
        assert_product(actual - bias, x, values_of(weight), row=row, times=2)


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("kind", [Storage.Q4_1, Storage.Q8_0])
@pytest.mark.parametrize("size", [1, 45])
def test_gated_products_equal_silu_and_mul(
    isa: Isa, dtype: Dtype, kind: Storage, size: int
) -> None:
    weight = make_blocks(kind, 2 * size, 96)
    builder = make_builder(dtype)
    raw, codes = builder.buffer(96), builder.buffer(96, row=Row.CODES)
    out = builder.buffer(size)
    builder.code(raw, codes)
    builder.linear(codes, out, weight, None, Epilogue.GATED)
    program = make_program(builder, isa)
    x = make_floats(7, 96, dtype=dtype)
    program.view(raw, width=96, num_tokens=7, dtype=dtype)[:] = x
    program.run(make_arrays(7))
    expected = reference.silu_and_mul(reference.quantised_linear(x, values_of(weight)))
    actual = program.view(out, width=size, num_tokens=7, dtype=dtype)[:, :size]
    assert_near(actual, expected, dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", QUANTISED)
def test_tied_table_serves_lookup_and_head(isa: Isa, kind: Storage) -> None:
    size = kind.block_size
    table = make_blocks(kind, 97, size)
    builder = make_builder(FLOAT32, hidden_size=size)
    residual, codes = builder.buffer(size, row=Row.FLOATS), builder.buffer(size, row=Row.CODES)
    packed = builder.arena.pack(table)
    builder.embed(residual, packed)
    norm = make_floats(size, seed=2)
    builder.norm(residual, codes, Norm(weight=norm, eps=1e-5), of_rows=True)
    builder.head(codes, packed)
    program = make_program(builder, isa)
    arrays = make_arrays(40, num_rows=3)
    arrays.token_ids = np.arange(96, 56, -1, dtype=np.int64)
    arrays.row_tokens[:], arrays.logits_of_row[:] = [0, 7, 39], [2, 0, 1]
    program.run(arrays)
    values = values_of(table)
    rows = values[arrays.token_ids]
    embedded = program.view(residual, width=size, num_tokens=40, dtype=FLOAT32)
    assert np.abs(embedded - rows).max() <= 1e-3 * np.abs(values).max()
    normed = reference.rms_norm(embedded[[7, 39, 0]], norm, eps=1e-5)
    assert_product(arrays.logits, normed, values)
    assert arrays.argmax.tolist() == arrays.logits[[2, 0, 1]].argmax(axis=1).tolist()


@pytest.mark.parametrize("row", MOST_CODE)
@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", QUANTISED)
def test_rows_depend_on_nothing_but_themselves(isa: Isa, kind: Storage, row: Row) -> None:
    k, n = kind.block_size, 40
    builder = make_builder(FLOAT32)
    raw, codes = builder.buffer(k), builder.buffer(k, row=row)
    out = builder.buffer(n, row=Row.FLOATS)
    builder.code(raw, codes)
    builder.linear(codes, out, make_blocks(kind, n, k), None, Epilogue.STORE)
    program = make_program(builder, isa)
    x = make_floats(MOST_ROWS, k)
    together = run(program, x, x_buffer=raw, out=out, n=n)
    for first, rows in ((0, 1), (5, 4), (13, 20), (199, 1), (140, 60)):
        alone = run(program, x[first : first + rows], x_buffer=raw, out=out, n=n)
        assert_same_bits(alone, together[first : first + rows])
    x[3, 17] = np.nan
    x[4, 9] = np.inf
    poisoned = run(program, x, x_buffer=raw, out=out, n=n)
    assert np.isnan(poisoned[3]).all()
    assert np.isnan(poisoned[4]).all()
    healthy = [row for row in range(MOST_ROWS) if row not in (3, 4)]
    assert_same_bits(poisoned[healthy], together[healthy])


@pytest.mark.parametrize("isa", ISAS)
def test_product_writes_to_its_columns_alone(isa: Isa) -> None:
    builder = make_builder(FLOAT32)
    raw, codes = builder.buffer(32), builder.buffer(32, row=Row.CODES)
    out = builder.buffer(128, row=Row.FLOATS)
    first, second = make_blocks(Storage.Q4_0, 64, 32), make_blocks(Storage.Q8_0, 50, 32)
    builder.code(raw, codes)
    builder.linear(codes, out, second, None, Epilogue.STORE, column=64)
    builder.linear(codes, out, first, None, Epilogue.STORE)
    program = make_program(builder, isa)
    x = make_floats(5, 32)
    actual = run(program, x, x_buffer=raw, out=out, n=114)
    both = np.concatenate([values_of(first), values_of(second)])
    assert_product(actual, x, both)


def test_eight_bits_made_at_load_are_within_half_a_step() -> None:
    values = make_floats(5, 70)
    values[2] = 0
    made = quantise(values, Storage.Q8_0)
    assert made.shape == values.shape
    groups, wrong = (
        np.abs(np.pad(one, ((0, 0), (0, 26)))).reshape(5, 3, 32)
        for one in (values, values_of(made) - values)
    )
    step = groups.max(axis=-1, keepdims=True) / 127
    assert (wrong <= 0.51 * step + 1e-6).all()


def test_four_bits_made_at_load_beat_rounding_over_the_whole_range() -> None:
    values = make_floats(20, 320)
    groups = values.reshape(20, 10, 32)
    low = groups.min(axis=-1, keepdims=True)
    step = (groups.max(axis=-1, keepdims=True) - low) / 15
    plain = low + np.round((groups - low) / step) * step
    error = ((values_of(quantise(values, Storage.Q4_1)) - values) ** 2).mean()
    assert error < 0.97 * ((plain - groups) ** 2).mean()


def test_floats_are_made_no_other_type() -> None:
    with pytest.raises(ValueError, match="not Q4_K"):
        quantise(make_floats(1, 256), Storage.Q4_K)


def test_padding_of_a_row_is_no_part_of_it() -> None:
    made = quantise(make_floats(3, 33), Storage.Q4_1)
    assert (made.shape, made.blocks.shape) == ((3, 33), (3, 40))
    assert StoredMatrix.rows(made, 1, 2).shape == (2, 33)

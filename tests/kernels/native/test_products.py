"""The native ops against their plain meaning, on odd sizes, for every instruction set here."""

from dataclasses import replace

import numpy as np
import pytest

from signalbox_kernels import native
from signalbox_kernels.compilation import flags_of_sets, machine
from signalbox_kernels.floats import AnyArray, to_dtype, to_float32
from signalbox_kernels.native import ISA_VARIABLE, Isa, NativeUnavailable
from signalbox_kernels.op_parameters import HeadMatrices, Norm
from signalbox_kernels.structs import Activation, Epilogue, Index, Row
from tests.kernels.native import reference
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_floats
from tests.kernels.native.programs import (
    ELEMENTS,
    Dtype,
    assert_near,
    assert_same_bits,
    make_arrays,
    make_builder,
    make_program,
)
from tests.kernels.native.reference import linear, size_of_terms, wide
from tests.native_kernels import available_isas
from tests.rounding import relative_error

MOST_TOKENS = 64


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 50), (64, 96), (131, 77)])
def test_products_equal_the_reference(isa: Isa, dtype: Dtype, n: int, k: int) -> None:
    builder = make_builder(dtype)
    x_buffer, out = builder.buffer(k), builder.buffer(n, row=Row.FLOATS)
    weight, bias = make_floats(n, k, dtype=dtype), make_floats(n, dtype=dtype, seed=1)
    builder.linear(x_buffer, out, weight, bias, Epilogue.STORE)
    builder.linear(x_buffer, out, weight, None, Epilogue.ADD)
    program = make_program(builder, isa)
    for rows in (*range(1, 14), 33, MOST_TOKENS):
        x = make_floats(rows, k, dtype=dtype, seed=rows)
        program.view(x_buffer, width=k, num_tokens=MOST_TOKENS, dtype=dtype)[:rows, :k] = x
        program.run(make_arrays(rows))
        actual = program.view(out, width=n, num_tokens=MOST_TOKENS, dtype=FLOAT32)
        exact = 2 * linear(x, weight) + wide(bias)
        terms = 2 * size_of_terms(x, weight) + np.abs(wide(bias))
        # Two sums of k products, which bfloat16's are exactly; the bias, and one sum to the other.
        assert (np.abs(actual[:rows, :n] - exact) <= relative_error(k + 2) * terms).all()
        assert not actual[:rows, n:].any()  # padding stays zero


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_rows_of_products_depend_on_nothing_but_themselves(isa: Isa, dtype: Dtype) -> None:
    """Bit for bit, whatever share of a tile they fill, and with NaN beside them."""
    n, k, most = 40, 70, 230
    builder = make_builder(dtype)
    x_buffer, out = builder.buffer(k), builder.buffer(n, row=Row.FLOATS)
    builder.linear(x_buffer, out, make_floats(n, k, dtype=dtype), None, Epilogue.STORE)
    program = make_program(builder, isa)
    x = make_floats(most, k, dtype=dtype, seed=1)

    def product(rows: AnyArray) -> AnyArray:
        count = len(rows)
        program.view(x_buffer, width=k, num_tokens=count, dtype=dtype)[:, :k] = rows
        program.run(make_arrays(count))
        return program.view(out, width=n, num_tokens=count, dtype=FLOAT32)[:, :n].copy()

    together = product(x)
    poisoned = to_float32(x).copy()
    poisoned[7] = np.nan
    others = [row for row in range(most) if row != 7]
    assert_same_bits(product(to_dtype(poisoned, dtype))[others], together[others])
    for first, count in ((0, 1), (5, 16), (100, 33), (229, 1)):
        assert_same_bits(product(x[first : first + count]), together[first : first + count])


FUNCTIONS = {
    Activation.GELU: reference.gelu,
    Activation.GELU_TANH: reference.gelu_tanh,
    Activation.RELU: lambda x: np.maximum(x, 0),
    Activation.RELU_SQUARED: lambda x: np.maximum(x, 0) ** 2,
    Activation.SILU: lambda x: x / (1 + np.exp(-x)),
    Activation.IDENTITY: lambda x: x,
}


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("activation", FUNCTIONS)
def test_activations_of_products(isa: Isa, dtype: Dtype, activation: Activation) -> None:
    """Alone, and of a gate: also far from zero, where exponentials overflow."""
    builder, size, function = make_builder(dtype), 45, FUNCTIONS[activation]
    x_buffer, alone, gated = (builder.buffer(width) for width in (70, 2 * size, size))
    weight, bias = make_floats(2 * size, 70, dtype=dtype), make_floats(2 * size, dtype=dtype)
    for out, epilogue in ((alone, Epilogue.ACTIVATE), (gated, Epilogue.GATED)):
        builder.linear(x_buffer, out, weight, bias, epilogue, activation=activation)
    program = make_program(builder, isa)
    rows = make_floats(7, 70)
    rows[5] *= 100
    x = to_dtype(rows, dtype)
    program.view(x_buffer, width=70, num_tokens=7, dtype=dtype)[:, :70] = x
    program.run(make_arrays(7))
    product = linear(x, weight) + wide(bias)
    assert np.abs(product).max() > 100
    with np.errstate(over="ignore"):
        expected = function(product)
    actual = program.view(alone, width=2 * size, num_tokens=7, dtype=dtype)[:, : 2 * size]
    assert_near(actual, expected, dtype)
    actual = program.view(gated, width=size, num_tokens=7, dtype=dtype)[:, :size]
    assert_near(actual, expected[:, :size] * product[:, size:], dtype)


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("num_tokens", [1, 45])
@pytest.mark.parametrize("src_step", [0, 64])
def test_heads_multiply_columns_of_their_own(
    isa: Isa, dtype: Dtype, num_tokens: int, src_step: int
) -> None:
    """Of normed rows of a width of their own; each head writes its columns behind those before."""
    num_heads, width, n = 5, 5 * 64, 32
    weights = [make_floats(n, src_step or width, dtype=dtype, seed=i) for i in range(num_heads)]
    builder = make_builder(dtype)
    given, out = builder.buffer(width, row=Row.FLOATS), builder.buffer(width, row=Row.FLOATS)
    normed, elements = builder.buffer(width), builder.buffer(num_heads * n)
    norm = make_floats(width)
    builder.norm(given, normed, Norm(weight=norm, eps=1e-5))
    builder.linear(
        normed, out, HeadMatrices(weights, src_step, 64), None, Epilogue.STORE, column=32
    )
    one = HeadMatrices(weights, src_step, n)
    activation = Activation.IDENTITY
    builder.linear(normed, elements, one, None, Epilogue.ACTIVATE, activation=activation)
    program, rows = make_program(builder, isa), make_floats(num_tokens, width)
    sizes = {"width": width, "num_tokens": num_tokens, "dtype": FLOAT32}
    program.view(given, **sizes)[:] = rows
    program.view(out, **sizes)[:] = 7
    program.run(make_arrays(num_tokens))
    x = reference.rms_norm(rows, norm, eps=1e-5).reshape(num_tokens, num_heads, 64)
    heads = [x[:, i] if src_step else x.reshape(num_tokens, -1) for i in range(num_heads)]
    expected = np.stack([linear(a, b) for a, b in zip(heads, weights, strict=True)], axis=1)
    columns = program.view(out, **sizes).reshape(num_tokens, num_heads, 64)
    assert (columns[:, :, :32] == 7).all()
    size = np.abs(expected).max()
    assert_near(columns[:, :, 32:] / size, expected / size, dtype)
    actual = program.view(elements, width=num_heads * n, num_tokens=num_tokens, dtype=dtype)
    assert_near(wide(actual).reshape(expected.shape) / size, expected / size, dtype)


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_a_normed_product_is_added_to_the_residual(isa: Isa, dtype: Dtype) -> None:
    builder = make_builder(dtype, hidden_size=50)
    residual, result = (builder.buffer(50, row=Row.FLOATS) for _ in range(2))
    weight = make_floats(50, dtype=dtype, seed=2)
    builder.norm(result, residual, Norm(weight=weight, eps=1e-5), sum_scale=0.25)
    program, rows, before = (
        make_program(builder, isa),
        make_floats(40, 50),
        make_floats(40, 50, seed=4),
    )
    program.view(result, width=50, num_tokens=40, dtype=FLOAT32)[:, :50] = rows
    program.view(residual, width=50, num_tokens=40, dtype=FLOAT32)[:, :50] = before
    program.run(make_arrays(40))
    actual = program.view(residual, width=50, num_tokens=40, dtype=FLOAT32)
    added = reference.rms_norm(rows, weight, eps=1e-5)
    assert_near(actual[:, :50], 0.25 * (before + added), FLOAT32)
    assert not actual[:, 50:].any()  # padding stays zero


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_a_product_has_factors_of_normed_columns(isa: Isa, dtype: Dtype) -> None:
    """Three runs of 48 columns are normed, and added to others; the second has the factors."""
    builder = make_builder(dtype)
    hidden, context, factors = (builder.buffer(n, row=Row.FLOATS) for n in (50, 144, 144))
    x, out = builder.buffer(50), builder.buffer(48)
    weight, scale = make_floats(48, 50, dtype=dtype), np.full(50, 0.5, dtype=np.float32)
    norm = make_floats(48, seed=3)
    builder.norm_columns(context, norm, column=0, eps=1e-5, num_runs=3, added_to=factors)
    builder.norm(hidden, x, Norm(weight=scale, eps=0.0, is_normed=False))
    function = {"activation": Activation.GELU_TANH, "gate": factors, "column": 48}
    builder.linear(x, out, weight, None, Epilogue.MODULATE, **function)
    program = make_program(builder, isa)
    given = [make_floats(7, width, seed=width) for width in (50, 144, 145)]
    for buffer, values in zip((hidden, context, factors), given, strict=True):
        width = min(144, values.shape[1])
        view = program.view(buffer, width=width, num_tokens=7, dtype=FLOAT32)
        view[:, :width] = values[:, :width]
    program.run(make_arrays(7))
    runs = [reference.rms_norm(run, norm, eps=1e-5) for run in np.split(given[1], 3, axis=1)]
    expected = given[2][:, :144] + np.concatenate(runs, axis=1)
    actual = program.view(factors, width=144, num_tokens=7, dtype=FLOAT32)[:, :144]
    assert_near(actual, expected, FLOAT32)
    product = linear(to_dtype(given[0] * scale, dtype), weight)
    actual = program.view(out, width=48, num_tokens=7, dtype=dtype)[:, :48]
    assert_near(actual, reference.gelu_tanh(product) * expected[:, 48:96], dtype)


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_embeddings_of_types_and_positions_then_layer_norm(isa: Isa, dtype: Dtype) -> None:
    builder, offset = make_builder(dtype), 2
    residual, normed = builder.buffer(50, row=Row.FLOATS), builder.buffer(50)
    tables = [make_floats(rows, 50, dtype=dtype, seed=rows) for rows in (97, 45, 3)]
    tokens, places, types = (builder.arena.pack(table) for table in tables)
    weight, bias = make_floats(50, dtype=dtype, seed=2), make_floats(50, dtype=dtype, seed=3)
    builder.embed(residual, tokens)
    builder.embed(residual, places, index=Index.POSITIONS, first_token=-offset, adds=True)
    builder.embed(residual, types, index=Index.TOKEN_TYPES, adds=True)
    norm = Norm(weight=weight, eps=1e-5, is_centred=True)
    builder.norm(residual, normed, norm)
    builder.norm(residual, residual, replace(norm, bias=bias), to_floats=True)
    program, arrays = make_program(builder, isa), make_arrays(40)
    for given in (None, np.arange(40, dtype=np.int32) % 3):
        arrays.token_types = given
        program.run(arrays)
        chosen = np.zeros(40, dtype=np.int32) if given is None else given
        rows = wide(tables[0][:40]) + wide(tables[1][offset:][:40]) + wide(tables[2][chosen])
        actual = program.view(normed, width=50, num_tokens=40, dtype=dtype)
        assert_near(actual[:, :50], reference.layer_norm(rows, weight, None, eps=1e-5), dtype)
        actual = program.view(residual, width=50, num_tokens=40, dtype=FLOAT32)
        assert_near(actual[:, :50], reference.layer_norm(rows, weight, bias, eps=1e-5), FLOAT32)
        assert not actual[:, 50:].any()  # padding stays zero


@pytest.mark.parametrize("scale", [1.0, 0.7])
@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_embedding_then_norm(isa: Isa, dtype: Dtype, scale: float) -> None:
    builder = make_builder(dtype)
    residual, normed = builder.buffer(50, row=Row.FLOATS), builder.buffer(50)
    table, weight = make_floats(97, 50, dtype=dtype), make_floats(50, dtype=dtype, seed=2)
    builder.embed(residual, builder.arena.pack(table), scale=scale)
    builder.norm(residual, normed, Norm(weight=weight, eps=1e-5))
    program = make_program(builder, isa)
    arrays = make_arrays(40)
    arrays.token_ids = np.arange(96, 56, -1, dtype=np.int64)
    program.run(arrays)
    rows = to_float32(table[arrays.token_ids]) * np.float32(scale)
    embedded = program.view(residual, width=50, num_tokens=40, dtype=FLOAT32)[:, :50]
    assert_same_bits(embedded, rows)
    actual = program.view(normed, width=50, num_tokens=40, dtype=dtype)[:, :50]
    assert_near(actual, reference.rms_norm(rows, weight, eps=1e-5), dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize(("cap", "hole"), [(None, np.nan), (50.0, np.nan), (50.0, np.inf)])
def test_head_finds_the_best_allowed_token_and_what_is_not_finite(
    isa: Isa, cap: float | None, hole: float
) -> None:
    builder = make_builder(FLOAT32, vocab_size=1031)
    hidden = builder.buffer(50)
    weight = make_floats(1031, 50)
    builder.head(hidden, builder.arena.pack(weight), cap=cap)
    program = make_program(builder, isa)
    x = make_floats(5, 50, seed=4)
    expected = linear(x, weight)
    allowed = relative_error(50) * size_of_terms(x, weight)
    if cap is not None:  # whose slope is 1 at most
        expected, allowed = cap * np.tanh(expected / cap), allowed + cap * 2.0**-21
    top = np.argsort(-expected, axis=1)[:, :4]
    gaps = -np.diff(np.take_along_axis(expected, top, axis=1))
    assert (gaps > 2 * allowed.max(axis=1, keepdims=True)).all()
    x[3, 7] = hole
    program.view(hidden, width=50, num_tokens=5, dtype=FLOAT32)[:, :50] = x
    arrays = make_arrays(5, num_rows=5, vocab=1031)
    arrays.logits_of_row[[1, 4]] = [1, 0]
    arrays.suppressed = np.array([*top[0, :2], *top[2, :1], 5], dtype=np.int32)
    arrays.suppressed_end = np.array([2, 2, 3, 3, 4], dtype=np.int32)
    program.run(arrays)
    assert arrays.argmax[[0, 1, 2, 4]].tolist() == [top[0, 2], top[1, 0], top[2, 1], top[4, 0]]
    assert arrays.is_finite.tolist() == [1, 1, 1, 0, 1]
    assert (np.abs(arrays.logits[:2] - expected[[4, 1]]) <= allowed[[4, 1]]).all()


def test_ties_go_to_the_lowest_token_and_nothing_allowed_is_minus_one() -> None:
    builder = make_builder(FLOAT32, vocab_size=70)
    hidden = builder.buffer(50)
    builder.head(hidden, builder.arena.pack(np.ones((70, 50), dtype=np.float32)))
    program = make_program(builder)
    program.view(hidden, width=50, num_tokens=2, dtype=FLOAT32)[:, :50] = 1.0
    arrays = make_arrays(2, num_rows=2, vocab=70)
    arrays.suppressed = np.arange(70, dtype=np.int32)
    arrays.suppressed_end = np.array([0, 70], dtype=np.int32)
    program.run(arrays)
    assert arrays.argmax.tolist() == [0, -1]


@pytest.mark.parametrize(
    "size", [{"head_size": 24}, {"block_size": 8}, {"block_size": 48}], ids=str
)
def test_numbers_that_the_kernels_cannot_do_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(NativeUnavailable, match="no native program"):
        make_program(make_builder(FLOAT32, **size))


@pytest.mark.parametrize("limit", [Isa[name.upper()] for name in flags_of_sets(machine())])
def test_a_limit_gives_the_best_set_up_to_it(limit: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    there = available_isas()
    assert native.best_isa() is there[-1]
    monkeypatch.setenv(ISA_VARIABLE, limit.name.lower())
    expected = max(isa for isa in there if isa <= limit)
    assert native.best_isa() is expected
    builder = make_builder(FLOAT32)
    residual = builder.buffer(50, row=Row.FLOATS)
    builder.embed(residual, builder.arena.pack(make_floats(97, 50)))
    assert make_program(builder).isa is expected


def test_a_limit_that_is_no_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "sse")
    names = ", ".join(flags_of_sets(machine()))
    with pytest.raises(ValueError, match=f"^SIGNALBOX_ISA is 'sse'; it is one of {names}$"):
        native.best_isa()

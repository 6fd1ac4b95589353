"""The native ops against the plain Torch meaning, on odd sizes, for every instruction set here."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from signalbox_kernels import native, reference
from signalbox_kernels.compilation import flags_of_sets, machine
from signalbox_kernels.native import ISA_VARIABLE, Isa, NativeUnavailable
from signalbox_kernels.structs import Epilogue, Row
from tests.kernels.instruction_sets import ISAS
from tests.kernels.native_programs import (
    ELEMENTS,
    TOLERANCE,
    make_arrays,
    make_builder,
    make_matrix,
    make_program,
)
from tests.rounding import relative_error

MOST_TOKENS = 64


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize(("n", "k"), [(1, 1), (33, 50), (64, 96), (131, 77)])
def test_products_equal_the_reference(isa: Isa, dtype: torch.dtype, n: int, k: int) -> None:
    builder = make_builder(dtype)
    x_buffer, out = builder.buffer(k), builder.buffer(n, row=Row.FLOATS)
    weight, bias = make_matrix(n, k, dtype=dtype), make_matrix(n, dtype=dtype, seed=1)
    builder.linear(x_buffer, out, weight, bias, Epilogue.STORE)
    builder.linear(x_buffer, out, weight, None, Epilogue.ADD)
    program = make_program(builder, isa)
    for rows in (*range(1, 14), 33, MOST_TOKENS):
        x = make_matrix(rows, k, dtype=dtype, seed=rows)
        program.view(x_buffer, width=k, num_tokens=MOST_TOKENS, dtype=dtype)[:rows, :k] = x
        program.run(make_arrays(rows))
        actual = program.view(out, width=n, num_tokens=MOST_TOKENS, dtype=torch.float32)
        exact = 2 * F.linear(x.double(), weight.double()) + bias.double()
        terms = 2 * F.linear(x.double().abs(), weight.double().abs()) + bias.double().abs()
        # Two sums of k products, which bfloat16's are exactly; the bias, and one sum to the other.
        assert ((actual[:rows, :n] - exact).abs() <= relative_error(k + 2) * terms).all()
        assert not actual[:rows, n:].any()  # padding stays zero


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_rows_of_products_depend_on_nothing_but_themselves(isa: Isa, dtype: torch.dtype) -> None:
    """Bit for bit, whatever share of a tile they fill, and with NaN beside them."""
    n, k, most = 40, 70, 230
    builder = make_builder(dtype)
    x_buffer, out = builder.buffer(k), builder.buffer(n, row=Row.FLOATS)
    builder.linear(x_buffer, out, make_matrix(n, k, dtype=dtype), None, Epilogue.STORE)
    program = make_program(builder, isa)
    x = make_matrix(most, k, dtype=dtype, seed=1)

    def product(rows: Tensor) -> Tensor:
        count = len(rows)
        program.view(x_buffer, width=k, num_tokens=count, dtype=dtype)[:, :k] = rows
        program.run(make_arrays(count))
        return program.view(out, width=n, num_tokens=count, dtype=torch.float32)[:, :n].clone()

    together = product(x)
    poisoned = x.clone()
    poisoned[7] = float("nan")
    others = [row for row in range(most) if row != 7]
    assert torch.equal(product(poisoned)[others], together[others])
    for first, count in ((0, 1), (5, 16), (100, 33), (229, 1)):
        assert torch.equal(product(x[first : first + count]), together[first : first + count])


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("size", [1, 16, 45])
def test_gated_products_equal_silu_and_mul(isa: Isa, dtype: torch.dtype, size: int) -> None:
    builder = make_builder(dtype)
    x_buffer, out = builder.buffer(70), builder.buffer(size)
    weight, bias = make_matrix(2 * size, 70, dtype=dtype), make_matrix(2 * size, dtype=dtype)
    builder.linear(x_buffer, out, weight, bias, Epilogue.SWIGLU)
    program = make_program(builder, isa)
    x = make_matrix(7, 70, dtype=dtype)
    program.view(x_buffer, width=70, num_tokens=7, dtype=dtype)[:, :70] = x
    program.run(make_arrays(7))
    expected = reference.silu_and_mul(F.linear(x.float(), weight.float(), bias.float()))
    actual = program.view(out, width=size, num_tokens=7, dtype=dtype)[:, :size]
    torch.testing.assert_close(actual, expected.to(dtype), **TOLERANCE[dtype])


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_embedding_then_norm(isa: Isa, dtype: torch.dtype) -> None:
    builder = make_builder(dtype)
    residual, normed = builder.buffer(50, row=Row.FLOATS), builder.buffer(50)
    table, weight = make_matrix(97, 50, dtype=dtype), make_matrix(50, dtype=dtype, seed=2)
    builder.embed(residual, builder.arena.pack(table))
    builder.norm(residual, normed, weight, eps=1e-5)
    program = make_program(builder, isa)
    arrays = make_arrays(40)
    arrays.token_ids = np.arange(96, 56, -1, dtype=np.int64)
    program.run(arrays)
    rows = table[torch.from_numpy(arrays.token_ids)]
    embedded = program.view(residual, width=50, num_tokens=40, dtype=torch.float32)[:, :50]
    torch.testing.assert_close(embedded, rows.float(), rtol=0, atol=0)
    actual = program.view(normed, width=50, num_tokens=40, dtype=dtype)[:, :50]
    expected = reference.rms_norm(rows.float(), weight.float(), eps=1e-5).to(dtype)
    torch.testing.assert_close(actual, expected, **TOLERANCE[dtype])


@pytest.mark.parametrize("isa", ISAS)
def test_head_finds_the_best_allowed_token_and_what_is_not_finite(isa: Isa) -> None:
    builder = make_builder(torch.float32, vocab_size=1031)
    hidden = builder.buffer(50)
    weight = make_matrix(1031, 50)
    builder.head(hidden, builder.arena.pack(weight))
    program = make_program(builder, isa)
    x = make_matrix(5, 50, seed=4)
    expected = F.linear(x.double(), weight.double())
    allowed = relative_error(50) * F.linear(x.double().abs(), weight.double().abs())
    assert (expected.topk(4).values.diff().abs() > 2 * allowed.amax(1, keepdim=True)).all()
    top = expected.topk(3).indices.numpy()
    x[3, 7] = float("nan")
    program.view(hidden, width=50, num_tokens=5, dtype=torch.float32)[:, :50] = x
    arrays = make_arrays(5, num_rows=5, vocab=1031)
    arrays.logits_of_row[[1, 4]] = [1, 0]
    arrays.suppressed = np.array([*top[0, :2], *top[2, :1], 5], dtype=np.int32)
    arrays.suppressed_end = np.array([2, 2, 3, 3, 4], dtype=np.int32)
    program.run(arrays)
    assert arrays.argmax[[0, 1, 2, 4]].tolist() == [top[0, 2], top[1, 0], top[2, 1], top[4, 0]]
    assert arrays.is_finite.tolist() == [1, 1, 1, 0, 1]
    wrong = torch.from_numpy(arrays.logits[:2]) - expected[[4, 1]]
    assert (wrong.abs() <= allowed[[4, 1]]).all()


def test_ties_go_to_the_lowest_token_and_nothing_allowed_is_minus_one() -> None:
    builder = make_builder(torch.float32, vocab_size=70)
    hidden = builder.buffer(50)
    builder.head(hidden, builder.arena.pack(torch.ones(70, 50)))
    program = make_program(builder)
    program.view(hidden, width=50, num_tokens=2, dtype=torch.float32)[:, :50] = 1.0
    arrays = make_arrays(2, num_rows=2, vocab=70)
    arrays.suppressed = np.arange(70, dtype=np.int32)
    arrays.suppressed_end = np.array([0, 70], dtype=np.int32)
    program.run(arrays)
    assert arrays.argmax.tolist() == [0, -1]


@pytest.mark.parametrize("num_threads", [1, 2, 5, 16, 64])  # more than there are cores, too
def test_many_steps_on_many_threads_give_one_result(num_threads: int) -> None:
    builder = make_builder(torch.float32)
    x_buffer, out = builder.buffer(64), builder.buffer(64, row=Row.FLOATS)
    weight = make_matrix(64, 64)
    builder.linear(x_buffer, out, weight, None, Epilogue.STORE)
    for _ in range(20):
        builder.linear(x_buffer, out, weight, None, Epilogue.ADD)
    program = make_program(builder, num_threads=num_threads)
    x = make_matrix(3, 64)
    program.view(x_buffer, width=64, num_tokens=3, dtype=torch.float32)[:] = x
    arrays = make_arrays(3)
    results = set()
    for _ in range(100):
        program.run(arrays)
        actual = program.view(out, width=64, num_tokens=3, dtype=torch.float32)
        results.add(actual.numpy().tobytes())
    assert len(results) == 1
    # One sum of 64 products, added 20 times.
    allowed = 21 * relative_error(64 + 20) * F.linear(x.double().abs(), weight.double().abs())
    assert ((actual - 21 * F.linear(x.double(), weight.double())).abs() <= allowed).all()


@pytest.mark.parametrize(
    "size", [{"head_size": 24}, {"block_size": 8}, {"block_size": 48}], ids=str
)
def test_numbers_that_the_kernels_cannot_do_are_refused(size: dict[str, int]) -> None:
    with pytest.raises(NativeUnavailable, match="no native program"):
        make_program(make_builder(torch.float32, **size))


@pytest.mark.parametrize("limit", [Isa[name.upper()] for name in flags_of_sets(machine())])
def test_a_limit_gives_the_best_set_up_to_it(limit: Isa, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ISA_VARIABLE, raising=False)
    there = native.available_isas()
    assert native.best_isa() is there[-1]
    monkeypatch.setenv(ISA_VARIABLE, limit.name.lower())
    expected = max(isa for isa in there if isa <= limit)
    assert native.best_isa() is expected
    assert native.available_isas() == [isa for isa in there if isa <= limit]
    builder = make_builder(torch.float32)
    residual = builder.buffer(50, row=Row.FLOATS)
    builder.embed(residual, builder.arena.pack(make_matrix(97, 50)))
    assert make_program(builder).isa is expected


def test_a_limit_that_is_no_set_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ISA_VARIABLE, "sse")
    names = ", ".join(flags_of_sets(machine()))
    with pytest.raises(ValueError, match=f"^SIGNALBOX_ISA is 'sse'; it is one of {names}$"):
        native.best_isa()

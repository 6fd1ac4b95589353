"""Products in float32 over every storage: bits of the expanded weights, and bytes they take."""

import numpy as np
import pytest

from signalbox_kernels.arena import Arena
from signalbox_kernels.floats import BFLOAT16, AnyArray
from signalbox_kernels.native import Isa, NativeUnavailable, multiplies_bfloat16
from signalbox_kernels.op_parameters import Norm
from signalbox_kernels.storage import FLOAT_CODES, QUANTISED, Matrix, Storage, StoredMatrix
from signalbox_kernels.structs import Epilogue, Row
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import (
    FLOAT32,
    make_blocks,
    make_extreme,
    make_float_codes,
    make_floats,
    make_stored,
    values_of,
)
from tests.kernels.native.programs import (
    assert_same_bits,
    make_arrays,
    make_builder,
    make_program,
)

STORAGES = [kind for kind in Storage if kind is not Storage.F32]
ROWS = (1, 2, 5, 12, 13, 33, 200)


def products(
    isa: Isa, weight: Matrix, bias: AnyArray, epilogue: Epilogue, *, num_threads: int = 2
) -> list[AnyArray]:
    """[rows, n] of each number of rows, alike for all weights of a shape."""
    (n, k), wide = weight.shape, epilogue is not Epilogue.GATED
    builder = make_builder(FLOAT32)
    source = builder.buffer(k)
    width = n if wide else n // 2
    out = builder.buffer(width, row=Row.FLOATS if wide else Row.ELEMENTS)
    builder.linear(source, out, weight, bias, epilogue)
    program = make_program(builder, isa, num_threads)
    found = []
    for rows in ROWS:
        x = make_floats(rows, k, seed=rows)
        program.view(source, width=k, num_tokens=max(ROWS), dtype=FLOAT32)[:rows, :k] = x
        program.view(out, width=width, num_tokens=max(ROWS), dtype=FLOAT32)[:rows] = 0
        program.run(make_arrays(rows))
        result = program.view(out, width=width, num_tokens=max(ROWS), dtype=FLOAT32)
        found.append(result[:rows, :width].copy())
    return found


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("epilogue", [Epilogue.STORE, Epilogue.ADD, Epilogue.GATED])
def test_products_have_the_bits_of_the_expanded_weight(
    isa: Isa, kind: Storage, epilogue: Epilogue
) -> None:
    weight, bias = make_stored(kind, 70, 3 * 256), make_floats(70, seed=1)
    expected = products(isa, values_of(weight), bias, epilogue)
    actual = products(isa, weight, bias, epilogue, num_threads=1)
    for ours, theirs in zip(actual, expected, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", QUANTISED)
def test_extreme_scales_are_exact(isa: Isa, kind: Storage) -> None:
    """Subnormal, largest and zero halves, under the largest and least codes and nested scales."""
    weight = make_extreme(kind, 64)
    bias = np.zeros(64, dtype=np.float32)
    expected = products(isa, values_of(weight), bias, Epilogue.STORE)
    for ours, theirs in zip(products(isa, weight, bias, Epilogue.STORE), expected, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*FLOAT_CODES, Storage.MXFP4])
@pytest.mark.parametrize("k", [32, 96, 5 * 32])
def test_scales_of_floats_of_any_size_are_exact(isa: Isa, kind: Storage, k: int) -> None:
    """Under subnormal and large scales, of which a last block may be small."""
    scales = (
        (2.0**-127, 2.0**-120, 1.0, 2.0**7)
        if kind is Storage.MXFP4
        else (2.0**-140, -(2.0**-126) / 3, 0.0, 255.9, -255.9, 1 / 3)
    )
    weight, bias = make_float_codes(kind, 64, k, scales=scales), np.zeros(64, dtype=np.float32)
    expected = products(isa, values_of(weight), bias, Epilogue.STORE)
    for ours, theirs in zip(products(isa, weight, bias, Epilogue.STORE), expected, strict=True):
        assert_same_bits(ours, theirs)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", [*FLOAT_CODES, Storage.MXFP4])
def test_a_scale_that_is_nan_makes_its_row_nan(isa: Isa, kind: Storage) -> None:
    weight = make_float_codes(kind, 40, 256)
    blocks = weight.blocks.copy()
    blocks[7, : kind.block_bytes] = 255  # NaN, and codes
    poisoned = StoredMatrix(kind, weight.shape, lambda: blocks)
    bias = np.zeros(40, dtype=np.float32)
    whole = products(isa, weight, bias, Epilogue.STORE)
    others = [row for row in range(40) if row != 7]
    for ours, theirs in zip(products(isa, poisoned, bias, Epilogue.STORE), whole, strict=True):
        assert np.isnan(ours[:, 7]).all()
        assert_same_bits(ours[:, others], theirs[:, others])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kind", STORAGES)
@pytest.mark.parametrize("is_tied", [True, False])
def test_lookup_and_head_have_the_bits_of_the_expanded_tables(
    isa: Isa, kind: Storage, is_tied: bool
) -> None:
    size, vocab = 256, 97
    table = make_stored(kind, vocab, size)
    head = table if is_tied else make_stored(kind, vocab, size, seed=1)

    def run(table: Matrix, head: Matrix) -> tuple[AnyArray, AnyArray, list[int]]:
        builder = make_builder(FLOAT32, hidden_size=size)
        residual, normed = builder.buffer(size, row=Row.FLOATS), builder.buffer(size)
        packed = builder.arena.pack(table)
        builder.embed(residual, packed)
        norm = Norm(weight=make_floats(size, seed=2), eps=1e-5)
        builder.norm(residual, normed, norm, of_rows=True)
        builder.head(normed, packed if is_tied else builder.arena.pack(head))
        program = make_program(builder, isa)
        arrays = make_arrays(40, num_rows=3)
        arrays.token_ids = np.arange(96, 56, -1, dtype=np.int64)
        arrays.row_tokens[:], arrays.logits_of_row[:] = [0, 7, 39], [2, 0, 1]
        program.run(arrays)
        rows = program.view(residual, width=size, num_tokens=40, dtype=FLOAT32).copy()
        return rows, arrays.logits, arrays.argmax.tolist()

    rows, logits, tokens = run(table, head)
    expected = run(values_of(table), values_of(head))
    assert_same_bits(rows, expected[0])
    assert_same_bits(rows, values_of(table)[np.arange(96, 56, -1)])
    assert_same_bits(logits, expected[1])
    assert tokens == expected[2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_coded", [True, False])
def test_a_gate_that_is_stored_apart_gives_the_bits_of_the_fused_matrix(
    isa: Isa, is_coded: bool
) -> None:
    size, k, rows = 45, 96, 5
    gate_up, bias = make_blocks(Storage.Q5_0, 2 * size, k), make_floats(2 * size, seed=1)
    builder = make_builder(FLOAT32)
    raw, codes = builder.buffer(k), builder.buffer(k, row=Row.CODES)
    gate = builder.buffer(size, row=Row.FLOATS)
    fused, apart = builder.buffer(size), builder.buffer(size)
    source = codes if is_coded else raw
    builder.code(raw, codes)
    builder.linear(source, fused, gate_up, bias, Epilogue.GATED)
    builder.linear(source, gate, gate_up.rows(0, size), bias[:size], Epilogue.STORE)
    up = gate_up.rows(size, size)
    builder.linear(source, apart, up, bias[size:], Epilogue.GATE, gate=gate)
    program = make_program(builder, isa)
    x = make_floats(rows, k)
    program.view(raw, width=k, num_tokens=rows, dtype=FLOAT32)[:] = x
    program.run(make_arrays(rows))
    first, second = (
        program.view(buffer, width=size, num_tokens=rows, dtype=FLOAT32)
        for buffer in (fused, apart)
    )
    assert_same_bits(first, second)
    assert first[:, :size].any(axis=1).all()
    assert not first[:, size:].any()  # padding stays zero


@pytest.mark.parametrize("kind", Storage)
@pytest.mark.parametrize("n", [64, 1000])
def test_packed_weights_take_the_bytes_of_the_file(kind: Storage, n: int) -> None:
    matrix = make_stored(kind, n, 512)
    arena = Arena()
    arena.pack(matrix)
    whole_panels = -(-n // 32) * 32 / n
    assert arena.num_bytes <= 1.04 * whole_panels * matrix.blocks.nbytes


def test_storage_that_does_not_suit_the_arithmetic_is_refused() -> None:
    for dtype, kind, row in (
        (FLOAT32, Storage.F16, Row.CODES),
        (FLOAT32, Storage.E4M3, Row.CODES),
        (BFLOAT16, Storage.F16, Row.ELEMENTS),
        (BFLOAT16, Storage.Q4_0, Row.ELEMENTS),
    ):
        builder = make_builder(dtype)
        source, out = builder.buffer(32, row=row), builder.buffer(32, row=Row.FLOATS)
        builder.linear(source, out, make_stored(kind, 32, 32), None, Epilogue.STORE)
        with pytest.raises(NativeUnavailable):
            make_program(builder)


@pytest.mark.parametrize("isa", ISAS)
def test_bfloat16_is_no_arithmetic_without_its_instructions(isa: Isa) -> None:
    builder = make_builder(BFLOAT16)
    source, out = builder.buffer(32), builder.buffer(32, row=Row.FLOATS)
    weight = make_floats(32, 32, dtype=BFLOAT16)
    builder.linear(source, out, weight, None, Epilogue.STORE)
    if multiplies_bfloat16(isa):
        make_program(builder, isa)
    else:
        with pytest.raises(NativeUnavailable):
            make_program(builder, isa)

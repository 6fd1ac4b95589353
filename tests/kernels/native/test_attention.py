"""Rotation, cache and attention over blocks, natively and in plain NumPy, on odd sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from signalbox_kernels.floats import BFLOAT16, AnyArray, to_bfloat16, to_float32
from signalbox_kernels.native import Isa
from signalbox_kernels.program import Program
from signalbox_kernels.structs import Row, StepArrays
from tests.kernels.native import reference
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_floats
from tests.kernels.native.programs import (
    DTYPES,
    ELEMENTS,
    Dtype,
    angles,
    assert_near,
    assert_same_bits,
    make_arrays,
    make_builder,
    make_program,
)
from tests.kernels.native.reference import Doubles

CACHES = [
    pytest.param(*element.values, kv_dtype, id=f"{element.id}-{DTYPES[kv_dtype].name.lower()}")
    for element in ELEMENTS
    for kv_dtype in DTYPES
]
"""Instruction sets, each with the dtypes that it computes in and those of K and V."""


@dataclass
class Cached:
    """Rotation, cache and attention of one layer, natively and in plain NumPy."""

    program: Program
    buffers: tuple[int, int, int]
    dtype: Dtype
    kv_dtype: Dtype
    norms: tuple[AnyArray, AnyArray] | None
    window: int | None
    pool: AnyArray
    """[num_blocks, block_bytes] uint8, which the program uses."""
    cache: Doubles
    """[num_blocks, 2, block_size, num_kv_heads, head_size], of the reference."""

    def check_step(self, arrays: StepArrays, heads: AnyArray) -> None:
        """Compares what the program and the reference make of [num_tokens, all heads, size]."""
        rounds_apart = self.dtype if self.kv_dtype is FLOAT32 else self.kv_dtype
        assert_near(self.run(arrays, heads), self._expected(arrays, heads), rounds_apart)

    def run(self, arrays: StepArrays, heads: AnyArray) -> AnyArray:
        shape, count = self.program.shape, len(heads)
        source, _, out = self.buffers
        width = heads.shape[1] * shape.head_size
        view = self.program.view(source, width=width, num_tokens=200, dtype=FLOAT32)
        view[:count, :width] = heads.reshape(count, -1)
        self.program.run(arrays)
        width = shape.num_heads * shape.head_size
        actual = self.program.view(out, width=width, num_tokens=200, dtype=self.dtype)
        return actual[:count, :width].reshape(count, shape.num_heads, -1).copy()

    def _expected(self, arrays: StepArrays, heads: AnyArray) -> Doubles:
        shape, at = self.program.shape, arrays.attention
        end = shape.num_heads + shape.num_kv_heads
        queries, keys, values = np.split(heads, [shape.num_heads, end], axis=1)
        if self.norms is not None:
            queries, keys = (
                reference.rms_norm(heads, norm, eps=1e-6)
                for heads, norm in zip((queries, keys), self.norms, strict=True)
            )
        turns = angles(shape.head_size)[arrays.positions]
        blocks, offsets = np.divmod(at.slots, shape.block_size)
        for part, entries in enumerate((reference.rotate(keys, turns), values)):
            self.cache[blocks, part, offsets] = reference.rounded(entries, self.kv_dtype)
        return reference.paged_attention(
            reference.rounded(reference.rotate(queries, turns), self.dtype),
            self.cache,
            at,
            scale=shape.scale,
            window=self.window,
        )


def make_cached(
    dtype: Dtype,
    kv_dtype: Dtype,
    *,
    isa: Isa | None = None,
    qk_norm: bool = False,
    window: int | None = None,
    **shape: int,
) -> Cached:
    builder = make_builder(dtype, kv_dtype=kv_dtype, **shape)
    sizes = builder.shape
    both = sizes.num_heads + 2 * sizes.num_kv_heads
    buffers = (
        builder.buffer(both * sizes.head_size, row=Row.FLOATS),
        builder.buffer(sizes.num_heads * sizes.head_size),
        builder.buffer(sizes.num_heads * sizes.head_size),
    )
    norms = (make_floats(sizes.head_size), make_floats(sizes.head_size, seed=3))
    used = norms if qk_norm else None
    builder.rotate(buffers[0], buffers[1], layer=1, norms=used, eps=1e-6)
    builder.attend(buffers[1], buffers[2], layer=1, window=window)
    program = make_program(builder, isa)
    pool = np.full((60, sizes.block_bytes), 255, dtype=np.uint8)  # NaN everywhere
    program.bind(pool)
    cache = np.zeros((60, 2, sizes.block_size, sizes.num_kv_heads, sizes.head_size))
    return Cached(program, buffers, dtype, kv_dtype, used, window, pool, cache)


def make_step(
    cached: Cached, contexts: Sequence[int], queries: Sequence[int], seed: int
) -> tuple[StepArrays, AnyArray]:
    """Sequence i has contexts[i] tokens after the step, of which it computes queries[i]."""
    shape = cached.program.shape
    size, width = shape.block_size, 60 // len(contexts)
    tables = np.random.default_rng(7).permutation(60)[: width * len(contexts)]
    tables = tables.reshape(-1, width).astype(np.int32)
    spans = [np.arange(c - q, c) for c, q in zip(contexts, queries, strict=True)]
    positions = np.concatenate(spans)
    arrays = make_arrays(len(positions))
    arrays.positions = positions
    slots = [tables[i][s // size].astype(np.int64) * size + s % size for i, s in enumerate(spans)]
    arrays.attention.slots = np.concatenate(slots)
    arrays.attention.query_start = np.cumsum([0, *queries])
    arrays.attention.context_lens = np.array(contexts, dtype=np.int64)
    arrays.attention.block_tables = tables
    count = shape.num_heads + 2 * shape.num_kv_heads
    return arrays, make_floats(len(positions), count, shape.head_size, seed=seed)


SHAPES = [
    {"head_size": 64, "num_heads": 3, "num_kv_heads": 1},
    {"head_size": 64, "num_heads": 9, "num_kv_heads": 3, "block_size": 32},
    {"head_size": 80, "num_heads": 4, "num_kv_heads": 4},
    {"head_size": 96, "num_heads": 7, "num_kv_heads": 1, "block_size": 32},
    {"head_size": 128, "num_heads": 14, "num_kv_heads": 2},
    {"head_size": 16, "num_heads": 51, "num_kv_heads": 1},
]


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("variant", [{}, {"qk_norm": True}, {"window": 21}], ids=str)
def test_attention_over_blocks_equals_the_reference(
    isa: Isa,
    dtype: Dtype,
    kv_dtype: Dtype,
    shape: dict[str, int],
    variant: dict[str, int],
) -> None:
    cached = make_cached(dtype, kv_dtype, isa=isa, **shape, **variant)  # type: ignore[arg-type]
    steps = [([15, 31, 1, 60], [15, 31, 1, 60]), ([16, 32, 2, 63], [1, 1, 1, 3])]
    steps += [([17, 61, 3, 64], [1, 29, 1, 1]), ([18, 62, 20, 65], [1, 1, 17, 1])]
    steps += [([19, 63, 21, 66], [1, 1, 1, 1]), ([20, 64, 22, 67], [1, 1, 1, 1])]
    for i, (contexts, queries) in enumerate(steps):
        cached.check_step(*make_step(cached, contexts, queries, seed=i))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_long_contexts_pass_several_softmax_chunks(isa: Isa, dtype: Dtype, kv_dtype: Dtype) -> None:
    cached = make_cached(dtype, kv_dtype, isa=isa, num_heads=4, num_kv_heads=2)
    for i, (context, count) in enumerate([(190, 190), (380, 190), (570, 190), (571, 1), (575, 4)]):
        cached.check_step(*make_step(cached, [context], [count], seed=i))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    isa: Isa, dtype: Dtype, kv_dtype: Dtype
) -> None:
    """Bit for bit: alone or in a batch, in one piece or token by token."""
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 64}
    whole, piecewise = (make_cached(dtype, kv_dtype, isa=isa, **shape) for _ in range(2))
    arrays, heads = make_step(whole, [45], [45], seed=0)
    expected = whole.run(arrays, heads)
    for position in range(45):
        one, _ = make_step(piecewise, [position + 1], [1], seed=0)
        assert_same_bits(piecewise.run(one, heads[position : position + 1])[0], expected[position])


@pytest.mark.parametrize("isa", ISAS)
def test_widened_k_and_v_give_the_bits_of_float32_that_holds_rounded_values(isa: Isa) -> None:
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 48}
    narrow = make_cached(FLOAT32, BFLOAT16, isa=isa, **shape)
    wide = make_cached(FLOAT32, FLOAT32, isa=isa, **shape)
    assert 2 * narrow.pool.shape[1] == wide.pool.shape[1]
    steps = [([150, 31], [150, 31]), ([280, 60], [130, 29]), ([281, 61], [1, 1])]
    for i, (contexts, queries) in enumerate(steps):
        arrays, heads = make_step(narrow, contexts, queries, seed=i)
        actual = narrow.run(arrays, heads)
        wide.run(arrays, heads)
        values = wide.pool.view(FLOAT32)
        values[:] = to_float32(to_bfloat16(values))
        arrays.attention.slots[:] = -1  # attention alone, over the rounded values
        assert_same_bits(actual, wide.run(arrays, heads))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_a_row_does_not_depend_on_how_a_long_prompt_was_cut(
    isa: Isa, dtype: Dtype, kv_dtype: Dtype
) -> None:
    """Bit for bit, with chunks of the running softmax that begin and end inside of steps."""

    def computed(ends: Sequence[int]) -> AnyArray:
        cached = make_cached(dtype, kv_dtype, isa=isa, num_heads=6, num_kv_heads=2)
        outputs = []
        for start, end in zip([0, *ends], ends, strict=False):
            arrays, _ = make_step(cached, [end], [end - start], seed=0)
            outputs.append(cached.run(arrays, rows[start:end]))
        return np.concatenate(outputs)

    rows = make_floats(560, 10, 16, seed=0)
    expected = computed([190, 380, 560])
    assert_same_bits(computed([7, 190, 255, 256, 257, 400, 560]), expected)
    assert_same_bits(computed([150, 300, 450, 559, 560]), expected)

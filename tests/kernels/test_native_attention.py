"""Rotation, cache and attention over blocks, natively and in plain Torch, on odd sizes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from signalbox_kernels import reference
from signalbox_kernels.native import Isa
from signalbox_kernels.program import Program
from signalbox_kernels.structs import Row, StepArrays
from tests.kernels.native_programs import (
    DTYPES,
    ELEMENTS,
    ISAS,
    TOLERANCE,
    angles,
    make_arrays,
    make_builder,
    make_matrix,
    make_program,
)

CACHES = [
    pytest.param(*element.values, kv_dtype, id=f"{element.id}-{DTYPES[kv_dtype].name.lower()}")
    for element in ELEMENTS
    for kv_dtype in DTYPES
]
"""Instruction sets, each with the dtypes that it computes in and those of K and V."""


@dataclass
class Cached:
    """Rotation, cache and attention of one layer, natively and in plain Torch."""

    program: Program
    buffers: tuple[int, int, int]
    dtype: torch.dtype
    kv_dtype: torch.dtype
    norms: tuple[Tensor, Tensor] | None
    window: int | None
    pool: Tensor
    """[num_blocks, block_bytes] uint8, which the program uses."""
    cache: Tensor
    """[num_blocks, 2, block_size, num_kv_heads, head_size] float32, of the reference."""

    @property
    def tolerance(self) -> dict[str, float]:
        """One for float32 on both sides, or that of values which the two sides may round apart."""
        return TOLERANCE[self.dtype if self.kv_dtype is torch.float32 else self.kv_dtype]

    def step(self, arrays: StepArrays, heads: Tensor) -> tuple[Tensor, Tensor]:
        """Returns what the program and the reference make of [num_tokens, all heads, head_size]."""
        return self.run(arrays, heads), self._expected(arrays, heads.clone())

    def run(self, arrays: StepArrays, heads: Tensor) -> Tensor:
        shape, count = self.program.shape, len(heads)
        source, _, out = self.buffers
        width = heads.shape[1] * shape.head_size
        view = self.program.view(source, width=width, num_tokens=200, dtype=torch.float32)
        view[:count, :width] = heads.flatten(1)
        self.program.run(arrays)
        width = shape.num_heads * shape.head_size
        actual = self.program.view(out, width=width, num_tokens=200, dtype=self.dtype)
        return actual[:count, :width].reshape(count, shape.num_heads, -1)

    def _expected(self, arrays: StepArrays, heads: Tensor) -> Tensor:
        shape = self.program.shape
        end = shape.num_heads + shape.num_kv_heads
        if self.norms is not None:
            queries, keys = heads[:, : shape.num_heads], heads[:, shape.num_heads : end]
            queries.copy_(reference.rms_norm(queries, self.norms[0], eps=1e-6))
            keys.copy_(reference.rms_norm(keys, self.norms[1], eps=1e-6))
        cos, sin = angles(shape.head_size)[torch.from_numpy(arrays.positions)].unbind(dim=1)
        cos, sin = torch.cat([cos, cos], -1)[:, None], torch.cat([-sin, sin], -1)[:, None]
        reference.rotary_embedding(heads[:, :end], cos, sin)
        cached = heads.to(self.kv_dtype).float()
        heads = heads.to(self.dtype).float()
        keys, values = cached[:, shape.num_heads : end], cached[:, end:]
        at = arrays.attention
        reference.reshape_and_cache(keys, values, self.cache, torch.from_numpy(at.slots))
        return reference.paged_attention(
            heads[:, : shape.num_heads],
            self.cache,
            query_start=torch.from_numpy(at.query_start),
            context_lens=torch.from_numpy(at.context_lens),
            block_tables=torch.from_numpy(at.block_tables),
            scale=shape.scale,
            sliding_window=self.window,
        ).to(self.dtype)


def make_cached(
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
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
    norms = (make_matrix(sizes.head_size), make_matrix(sizes.head_size, seed=3))
    used = norms if qk_norm else None
    builder.rotate(buffers[0], buffers[1], layer=1, norms=used, eps=1e-6)
    builder.attend(buffers[1], buffers[2], layer=1, window=window)
    program = make_program(builder, isa)
    pool = torch.full((60, sizes.block_bytes), 255, dtype=torch.uint8)  # NaN everywhere
    program.bind(pool)
    cache = torch.zeros(60, 2, sizes.block_size, sizes.num_kv_heads, sizes.head_size)
    return Cached(program, buffers, dtype, kv_dtype, used, window, pool, cache)


def make_step(
    cached: Cached, contexts: Sequence[int], queries: Sequence[int], seed: int
) -> tuple[StepArrays, Tensor]:
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
    return arrays, make_matrix(len(positions), count, shape.head_size, seed=seed)


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
    dtype: torch.dtype,
    kv_dtype: torch.dtype,
    shape: dict[str, int],
    variant: dict[str, int],
) -> None:
    cached = make_cached(dtype, kv_dtype, isa=isa, **shape, **variant)  # type: ignore[arg-type]
    steps = [([15, 31, 1, 60], [15, 31, 1, 60]), ([16, 32, 2, 63], [1, 1, 1, 3])]
    steps += [([17, 61, 3, 64], [1, 29, 1, 1]), ([18, 62, 20, 65], [1, 1, 17, 1])]
    steps += [([19, 63, 21, 66], [1, 1, 1, 1]), ([20, 64, 22, 67], [1, 1, 1, 1])]
    for i, (contexts, queries) in enumerate(steps):
        actual, expected = cached.step(*make_step(cached, contexts, queries, seed=i))
        torch.testing.assert_close(actual, expected, **cached.tolerance)


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_long_contexts_pass_several_softmax_chunks(
    isa: Isa, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    cached = make_cached(dtype, kv_dtype, isa=isa, num_heads=4, num_kv_heads=2)
    arrays: StepArrays | None = None
    for i, (context, count) in enumerate([(190, 190), (380, 190), (570, 190), (571, 1), (575, 4)]):
        arrays, heads = make_step(cached, [context], [count], seed=i)
        actual, expected = cached.step(arrays, heads)
        torch.testing.assert_close(actual, expected, **cached.tolerance)


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    isa: Isa, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """Bit for bit: alone or in a batch, in one piece or token by token."""
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 64}
    whole, piecewise = (make_cached(dtype, kv_dtype, isa=isa, **shape) for _ in range(2))
    arrays, heads = make_step(whole, [45], [45], seed=0)
    expected, _ = whole.step(arrays, heads)
    expected = expected.clone()
    for position in range(45):
        one, _ = make_step(piecewise, [position + 1], [1], seed=0)
        actual, _ = piecewise.step(one, heads[position : position + 1])
        assert torch.equal(actual[0], expected[position])


@pytest.mark.parametrize("isa", ISAS)
def test_widened_k_and_v_give_the_bits_of_float32_that_holds_rounded_values(isa: Isa) -> None:
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 48}
    narrow = make_cached(torch.float32, torch.bfloat16, isa=isa, **shape)
    wide = make_cached(torch.float32, torch.float32, isa=isa, **shape)
    assert 2 * narrow.pool.shape[1] == wide.pool.shape[1]
    steps = [([150, 31], [150, 31]), ([280, 60], [130, 29]), ([281, 61], [1, 1])]
    for i, (contexts, queries) in enumerate(steps):
        arrays, heads = make_step(narrow, contexts, queries, seed=i)
        actual = narrow.run(arrays, heads).clone()
        wide.run(arrays, heads)
        values = wide.pool.view(torch.float32)
        values.copy_(values.bfloat16().float())
        arrays.attention.slots[:] = -1  # attention alone, over the rounded values
        assert torch.equal(actual, wide.run(arrays, heads))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_a_row_does_not_depend_on_how_a_long_prompt_was_cut(
    isa: Isa, dtype: torch.dtype, kv_dtype: torch.dtype
) -> None:
    """Bit for bit, with chunks of the running softmax that begin and end inside of steps."""

    def computed(ends: Sequence[int]) -> Tensor:
        cached = make_cached(dtype, kv_dtype, isa=isa, num_heads=6, num_kv_heads=2)
        outputs = []
        for start, end in zip([0, *ends], ends, strict=False):
            arrays, _ = make_step(cached, [end], [end - start], seed=0)
            outputs.append(cached.run(arrays, rows[start:end]).clone())
        return torch.cat(outputs)

    rows = make_matrix(560, 10, 16, seed=0)
    expected = computed([190, 380, 560])
    assert torch.equal(computed([7, 190, 255, 256, 257, 400, 560]), expected)
    assert torch.equal(computed([150, 300, 450, 559, 560]), expected)

"""Rotation, cache and attention over blocks, natively and in plain NumPy, on odd sizes."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import pytest

from signalbox_kernels.floats import (
    BFLOAT16,
    FLOAT8_E4M3,
    AnyArray,
    to_bfloat16,
    to_float32,
)
from signalbox_kernels.native import Isa, NativeUnavailable
from signalbox_kernels.op_parameters import CachedLayer, Heads, LayerRotation, QueryKeyNorms
from signalbox_kernels.program import Program, ProgramShape
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.structs import KeysAndValues, Pairs, Row, StepArrays
from tests.kernels.native import reference
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_floats
from tests.kernels.native.programs import (
    ELEMENTS,
    INT8,
    KV_DTYPES,
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
    pytest.param(*element.values, kv_dtype, id=f"{element.id}-{KV_DTYPES[kv_dtype].name.lower()}")
    for element in ELEMENTS
    for kv_dtype in KV_DTYPES
]
"""Instruction sets, each with the dtypes that it computes in and those of K and V."""
CODED = (INT8, FLOAT8_E4M3)
WITH_LATENTS = [
    pytest.param(*cache.values, shape, id=f"{cache.id}-{kind}")
    for cache in CACHES
    for kind, shape in (
        ("heads", {"num_heads": 6, "num_kv_heads": 2, "head_size": 64}),
        ("sinks", {"num_heads": 6, "num_kv_heads": 2, "has_sinks": True, "window": 90}),
        ("latents", {"num_heads": 12, "head_size": 80, "value_size": 64}),
    )
    if kind != "latents" or cache.values[2] not in CODED
]
"""`CACHES`, each with shapes of its heads."""
KV_SCALES = (0.25, 3.0)  # of E4M3
OF_KEYS = KeysAndValues.VALUES_OF_KEYS | KeysAndValues.NORMED_VALUES


@dataclass
class Cached:
    """Rotation, cache and attention of one layer, natively and in plain NumPy."""

    program: Program
    shape: ProgramShape
    buffers: tuple[int, int, int]
    dtype: Dtype
    kv_dtype: Dtype
    norms: QueryKeyNorms | None
    rotation: LayerRotation
    window: int | None
    is_causal: bool
    sinks: AnyArray | None
    cap: float | None
    biases: AnyArray | None
    keys_and_values: KeysAndValues
    pool: AnyArray
    """[num_blocks, block_bytes] uint8, which the program uses."""
    cache: Doubles
    """[num_blocks, 2, block_size, num_kv_heads, head_size], of the reference; latents are both."""

    def check_step(self, arrays: StepArrays, heads: AnyArray) -> None:
        """Compares what the program and the reference make of [num_tokens, all heads, size]."""
        rounds_apart = BFLOAT16 if BFLOAT16 in (self.dtype, self.kv_dtype) else FLOAT32
        assert_near(self.run(arrays, heads), self._expected(arrays, heads), rounds_apart)

    def run(self, arrays: StepArrays, heads: AnyArray) -> AnyArray:
        shape, count = self.shape, len(heads)
        source, _, out = self.buffers
        width = heads.shape[1] * shape.head_size
        most = max(count, 200)
        view = self.program.view(source, width=width, num_tokens=most, dtype=FLOAT32)
        view[:count, :width] = heads.reshape(count, -1)
        self.program.run(arrays)
        width = shape.num_heads * (shape.value_size or shape.head_size)
        actual = self.program.view(out, width=width, num_tokens=most, dtype=self.dtype)
        return actual[:count, :width].reshape(count, shape.num_heads, -1).copy()

    def _expected(self, arrays: StepArrays, heads: AnyArray) -> Doubles:
        shape, at = self.shape, arrays.attention
        end = shape.num_heads + shape.num_kv_heads
        queries, keys, values = np.split(heads, [shape.num_heads, end], axis=1)
        if self.keys_and_values & KeysAndValues.VALUES_OF_KEYS:
            values = keys
        if self.keys_and_values & KeysAndValues.NORMED_VALUES:
            values = reference.rms_norm(values, np.ones(shape.head_size), eps=1e-6)
        if self.norms is not None:
            queries = reference.rms_norm(queries, self.norms.query, eps=self.norms.eps)
            keys = reference.rms_norm(keys, self.norms.key, eps=self.norms.eps)
        turns = angles(self.rotation.num_rotated)[arrays.positions]
        pairs, scales = self.rotation.pairs, self.rotation.query_scales
        queries, keys = (reference.rotate(one, turns, pairs) for one in (queries, keys))
        blocks, offsets = np.divmod(at.slots, shape.block_size)
        for part, entries in enumerate((keys, keys if shape.value_size else values)):
            if self.kv_dtype in CODED:
                self.cache[blocks, part, offsets] = self.decoded(part)[blocks, offsets]
                errors = np.abs(self.cache[blocks, part, offsets] - entries)
                assert (errors <= self._half_a_unit(part, entries)).all()
            else:
                self.cache[blocks, part, offsets] = reference.rounded(entries, self.kv_dtype)
        scaled = queries if scales is None else queries * scales[arrays.positions, None, None]
        attended = reference.paged_attention(
            reference.rounded(scaled, self.dtype),
            self.cache,
            at,
            scale=shape.scale,
            window=self.window,
            is_causal=self.is_causal,
            sinks=self.sinks,
            cap=self.cap,
            biases=self.biases,
        )
        return attended[..., -shape.value_size :]

    def decoded(self, part: int) -> Doubles:
        """Returns the K or V that the pool's codes mean, [num_blocks, block_size, heads, size]."""
        shape = self.shape
        size, block_size = shape.head_size, shape.block_size
        heads = self.pool.reshape(len(self.pool), 2, shape.num_kv_heads, -1)[:, 1]
        codes = heads[..., part * size * block_size :][..., : size * block_size]
        if part == 0:
            codes = codes.reshape(*heads.shape[:2], size, block_size).swapaxes(2, 3)
        codes = codes.reshape(*heads.shape[:2], block_size, size).swapaxes(1, 2)
        if self.kv_dtype == FLOAT8_E4M3:
            return to_float32(codes.view(FLOAT8_E4M3)).astype(np.float64) * KV_SCALES[part]
        scales = np.ascontiguousarray(heads[..., 2 * size * block_size :]).view(np.float32)
        scales = scales.reshape(*heads.shape[:2], 2, block_size)[:, :, part].swapaxes(1, 2)
        with np.errstate(invalid="ignore"):  # of slots that nothing was written to
            decoded: Doubles = codes.view(np.int8) * scales[..., None].astype(np.float64)
        return decoded

    def _half_a_unit(self, part: int, entries: Doubles) -> Doubles:
        """Returns the error that rounding to codes permits, and that of float32 before it."""
        size = np.abs(entries)
        if self.kv_dtype == INT8:
            return size.max(axis=-1, keepdims=True) * (0.5 / 127 + 1e-5) + 2.0**-120
        scale = KV_SCALES[part]
        cut = np.maximum(size - 448 * scale, 0)
        return np.maximum(size * 2.0**-4, scale * 2.0**-10) * (1 + 1e-5) + cut


def make_cached(
    dtype: Dtype,
    kv_dtype: Dtype,
    *,
    isa: Isa | None = None,
    qk_norm: bool = False,
    window: int | None = None,
    is_causal: bool = True,
    has_sinks: bool = False,
    num_passed: int = 0,
    pairs: Pairs = Pairs.HALVES,
    cap: float | None = None,
    num_positions: int = 0,
    keys_and_values: KeysAndValues = KeysAndValues.PLAIN,
    is_in_units: bool = False,
    scales_queries: bool = False,
    **shape: int,
) -> Cached:
    """Makes one layer's rotation, cache and attention.

    Args:
        is_in_units: as `make_layer` takes it.
        num_positions: positions whose distances have a bias; 0 is no bias.
    """
    builder, sizes, layer = make_layer(dtype, kv_dtype, shape, is_in_units=is_in_units)
    both = sizes.num_heads + (1 if sizes.value_size else 2 * sizes.num_kv_heads)
    buffers = (
        builder.buffer(both * sizes.head_size, row=Row.FLOATS),
        builder.buffer(sizes.num_heads * sizes.head_size),
        builder.buffer(sizes.num_heads * (sizes.value_size or sizes.head_size)),
    )
    weights = make_floats(sizes.head_size), make_floats(sizes.head_size, seed=3)
    norms = QueryKeyNorms(*weights, 1e-6) if qk_norm else None
    num_rotated = max(0, sizes.head_size - num_passed)
    rotation = LayerRotation(
        table=angles(num_rotated) if num_passed or is_in_units else None,
        num_rotated=num_rotated,
        pairs=pairs,
        query_scales=np.linspace(1, 2, 1024, dtype=np.float32) if scales_queries else None,
    )
    rules = {"norms": norms, "keys_and_values": keys_and_values}
    builder.rotate(buffers[0], buffers[1], layer, rotation, **rules)
    sinks = make_floats(sizes.num_heads, seed=4) * 3 if has_sinks else None
    biases = make_floats(sizes.num_heads, 2 * num_positions - 1, seed=5) if num_positions else None
    seen = {"window": window, "is_causal": is_causal, "cap": cap, "sinks": sinks, "biases": biases}
    builder.attend(buffers[1], buffers[2], layer, **seen)
    program = make_program(builder, isa)
    pool = np.full((60, program.shape.block_bytes), 255, dtype=np.uint8)  # NaN everywhere
    program.bind(pool)
    cache = np.zeros((60, 2, sizes.block_size, sizes.num_kv_heads, sizes.head_size))
    made = {"rotation": rotation, "pool": pool, "cache": cache}
    return Cached(program, sizes, buffers, dtype, kv_dtype, **rules, **seen, **made)


def make_layer(
    dtype: Dtype, kv_dtype: Dtype, shape: dict[str, int], *, is_in_units: bool
) -> tuple[ProgramBuilder, ProgramShape, CachedLayer]:
    """Args: is_in_units: makes the program's shape that of single heads of 16, as layers with other
    heads have it."""
    builder = make_builder(dtype, kv_dtype=kv_dtype, **shape)
    sizes, number, own = builder.shape, 1, None
    if is_in_units:
        number = sizes.num_kv_heads * sizes.head_size // 16
        units = shape | {"num_layers": 2 * number, "num_kv_heads": 1, "head_size": 16}
        builder = make_builder(dtype, kv_dtype=kv_dtype, **units)
        own = Heads(sizes.num_heads, sizes.num_kv_heads, sizes.head_size)
    scales = KV_SCALES if kv_dtype == FLOAT8_E4M3 else (1.0, 1.0)
    return builder, sizes, CachedLayer(number, own, *scales)


def make_step(
    cached: Cached, contexts: Sequence[int], queries: Sequence[int], seed: int
) -> tuple[StepArrays, AnyArray]:
    """Sequence i has contexts[i] tokens after the step, of which it computes queries[i]."""
    shape = cached.shape
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
    count = shape.num_heads + (1 if shape.value_size else 2 * shape.num_kv_heads)
    return arrays, make_floats(len(positions), count, shape.head_size, seed=seed)


SHAPES = [
    {"head_size": 64, "num_heads": 3, "num_kv_heads": 1},
    {"head_size": 64, "num_heads": 9, "num_kv_heads": 3, "block_size": 32},
    {"head_size": 80, "num_heads": 4, "num_kv_heads": 4},
    {"head_size": 96, "num_heads": 7, "num_kv_heads": 1, "block_size": 32},
    {"head_size": 128, "num_heads": 14, "num_kv_heads": 2},
    {"head_size": 16, "num_heads": 51, "num_kv_heads": 1},
    {"head_size": 48, "num_heads": 2, "num_kv_heads": 1, "block_size": 512},
]
LATENTS = [
    {"head_size": 80, "value_size": 64, "num_heads": 5},
    {"head_size": 320, "value_size": 288, "num_heads": 24, "block_size": 32},
]


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("shape", SHAPES + LATENTS, ids=str)
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"qk_norm": True, "pairs": Pairs.NEIGHBOURS, "num_passed": 6},
        {"window": 21, "num_passed": 6},
        {"qk_norm": True, "num_passed": 999, "cap": 2.0, "scales_queries": True},
        {"has_sinks": True, "window": 9, "keys_and_values": OF_KEYS, "num_positions": 67},
    ],
    ids=str,
)
def test_attention_over_blocks_equals_the_reference(
    isa: Isa,
    dtype: Dtype,
    kv_dtype: Dtype,
    shape: dict[str, int],
    variant: dict[str, int],
) -> None:
    make = partial(make_cached, dtype, kv_dtype, isa=isa, **shape, **variant)  # type: ignore[arg-type]
    if "value_size" in shape and (kv_dtype in CODED or "keys_and_values" in variant):
        with pytest.raises(NativeUnavailable, match="no native program"):
            make()
        return
    cached = make()
    steps = [([15, 31, 1, 60], [15, 31, 1, 60]), ([16, 32, 2, 63], [1, 1, 1, 3])]
    steps += [([17, 61, 3, 64], [1, 29, 1, 1]), ([18, 62, 20, 65], [1, 1, 17, 1])]
    steps += [([19, 63, 21, 66], [1, 1, 1, 1]), ([20, 64, 22, 67], [1, 1, 1, 1])]
    for i, (contexts, queries) in enumerate(steps):
        cached.check_step(*make_step(cached, contexts, queries, seed=i))


@pytest.mark.parametrize("num_rotated", [-2, 5, 18])
def test_rotations_that_cannot_be_are_refused(num_rotated: int) -> None:
    builder = make_builder(FLOAT32)
    wide, turned = builder.buffer(80, row=Row.FLOATS), builder.buffer(48)
    builder.rotate(wide, turned, CachedLayer(0), LayerRotation())
    make_program(builder)
    builder.ops[0].n = num_rotated
    with pytest.raises(NativeUnavailable, match="no native program"):
        make_program(builder)


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_long_contexts_pass_several_softmax_chunks(isa: Isa, dtype: Dtype, kv_dtype: Dtype) -> None:
    cached = make_cached(dtype, kv_dtype, isa=isa, num_heads=4, num_kv_heads=2)
    for i, (context, count) in enumerate([(190, 190), (380, 190), (570, 190), (571, 1), (575, 4)]):
        cached.check_step(*make_step(cached, [context], [count], seed=i))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize(
    "variant",
    [
        {},
        {"window": 1},
        {"window": 21},
        {"window": 290},
        {"num_positions": 300},
        {"num_positions": 310, "window": 21, "has_sinks": True},
    ],
    ids=str,
)
def test_attention_both_ways_equals_the_reference(
    isa: Isa, dtype: Dtype, kv_dtype: Dtype, variant: dict[str, int]
) -> None:
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 48}
    cached = make_cached(dtype, kv_dtype, isa=isa, is_causal=False, **shape, **variant)
    for i, contexts in enumerate(([300, 1, 17], [1, 1, 1], [9, 270, 31])):
        cached.check_step(*make_step(cached, contexts, contexts, seed=i))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
def test_heads_of_a_layer_are_computed_as_those_of_a_shape(
    isa: Isa, dtype: Dtype, kv_dtype: Dtype
) -> None:
    """Bit for bit, in a cache of smaller heads; and by queries that find K and V in it."""
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 48}
    plain, own, reading = (
        make_cached(dtype, kv_dtype, isa=isa, window=30, keys_and_values=bits, **shape, **units)
        for bits, units in (
            (KeysAndValues.NORMED_VALUES, {}),
            (KeysAndValues.NORMED_VALUES, {"is_in_units": True}),
            (KeysAndValues.NO_KEYS, {"is_in_units": True}),
        )
    )
    reading.program.bind(own.pool)
    for i, (contexts, queries) in enumerate([([45, 300], [45, 300]), ([46, 301], [1, 1])]):
        arrays, heads = make_step(plain, contexts, queries, seed=i)
        expected = plain.run(arrays, heads)
        assert_same_bits(own.run(arrays, heads), expected)
        before = own.pool.copy()
        heads[:, shape["num_heads"] :] = np.nan
        assert_same_bits(reading.run(arrays, heads), expected)
        assert_same_bits(own.pool, before)


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype", "shape"), WITH_LATENTS)
@pytest.mark.parametrize("pairs", Pairs)
def test_a_row_does_not_depend_on_the_rows_beside_it(
    pairs: Pairs, isa: Isa, dtype: Dtype, kv_dtype: Dtype, shape: dict[str, int]
) -> None:
    """Bit for bit: alone or in a batch, in one piece or token by token."""
    whole, piecewise = (
        make_cached(dtype, kv_dtype, isa=isa, pairs=pairs, num_passed=6 * pairs, **shape)
        for _ in range(2)
    )
    arrays, heads = make_step(whole, [45], [45], seed=0)
    expected = whole.run(arrays, heads)
    for position in range(45):
        one, _ = make_step(piecewise, [position + 1], [1], seed=0)
        assert_same_bits(piecewise.run(one, heads[position : position + 1])[0], expected[position])
    assert_same_bits(piecewise.pool, whole.pool)


@pytest.mark.parametrize("isa", ISAS)
def test_widened_k_and_v_give_the_bits_of_float32_that_holds_rounded_values(isa: Isa) -> None:
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 48}
    narrow = make_cached(FLOAT32, BFLOAT16, isa=isa, **shape)
    floats = make_cached(FLOAT32, FLOAT32, isa=isa, **shape)
    assert 2 * narrow.pool.shape[1] == floats.pool.shape[1]
    steps = [([150, 31], [150, 31]), ([280, 60], [130, 29]), ([281, 61], [1, 1])]
    for i, (contexts, queries) in enumerate(steps):
        arrays, heads = make_step(narrow, contexts, queries, seed=i)
        actual = narrow.run(arrays, heads)
        floats.run(arrays, heads)
        values = floats.pool.view(FLOAT32)
        values[:] = to_float32(to_bfloat16(values))
        arrays.attention.slots[:] = -1  # attention alone, over the rounded values
        assert_same_bits(actual, floats.run(arrays, heads))


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype", "shape"), WITH_LATENTS)
def test_a_row_does_not_depend_on_how_a_long_prompt_was_cut(
    isa: Isa, dtype: Dtype, kv_dtype: Dtype, shape: dict[str, int]
) -> None:
    """Bit for bit, with chunks of the running softmax that begin and end inside of steps."""

    def computed(ends: Sequence[int]) -> tuple[AnyArray, AnyArray]:
        cached = make_cached(dtype, kv_dtype, isa=isa, **shape)
        outputs = []
        for start, end in zip([0, *ends], ends, strict=False):
            arrays, _ = make_step(cached, [end], [end - start], seed=0)
            outputs.append(cached.run(arrays, rows[start:end]))
        return np.concatenate(outputs), cached.pool

    rows = make_step(make_cached(dtype, kv_dtype, isa=isa, **shape), [560], [560], seed=0)[1]
    expected = computed([190, 380, 560])
    for ends in ([7, 190, 255, 256, 257, 400, 560], [150, 300, 450, 559, 560]):
        for actual, array in zip(computed(ends), expected, strict=True):
            assert_same_bits(actual, array)


@pytest.mark.parametrize(("isa", "dtype", "kv_dtype"), CACHES)
@pytest.mark.parametrize("window", [1, 40, 256, 300])
@pytest.mark.parametrize("block_size", [16, 64, 512])
def test_no_block_before_the_windows_first_is_read(
    isa: Isa, dtype: Dtype, kv_dtype: Dtype, window: int, block_size: int
) -> None:
    shape = {"num_heads": 6, "num_kv_heads": 2, "head_size": 64, "block_size": block_size}
    cached = make_cached(dtype, kv_dtype, isa=isa, window=window, **shape)
    steps = [([557], [557]), ([558], [1]), ([572], [14]), ([628], [56])]
    for seed, (contexts, queries) in enumerate(steps):
        arrays, heads = make_step(cached, contexts, queries, seed=seed)
        expected = cached.run(arrays, heads)
        if seed:
            assert_same_bits(cached.run(arrays, heads), expected)
        num_behind = max(0, contexts[0] - queries[0] - window + 1) // block_size
        behind = arrays.attention.block_tables[0, :num_behind]
        kept = cached.pool[behind]
        cached.pool[behind] = 255  # NaN
        assert_same_bits(cached.run(arrays, heads), expected)
        cached.pool[behind] = kept


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", CODED, ids=["int8", "fp8_e4m3"])
def test_codes_of_any_magnitude_are_within_half_a_unit(isa: Isa, kv_dtype: Dtype) -> None:
    cached = make_cached(FLOAT32, kv_dtype, isa=isa, num_heads=1, num_kv_heads=1, head_size=32)
    arrays, heads = make_step(cached, [19], [19], seed=0)
    for token, power in enumerate(
        [-149, -140, -126, -121, -120, -119, -60, -11, -8, 0, 8, 60, 123]
    ):
        heads[token, 1:] *= 2.0**power
    heads[13, 1:], heads[14, 1], heads[15, 2] = 0, 0, 0
    heads[16, 1:, 5:] = 0
    heads[17, 1:] = np.arange(32) * 15 - 7  # up to 458, and ties
    cached.run(arrays, heads)
    cached._expected(arrays, heads)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("kv_dtype", CODED, ids=["int8", "fp8_e4m3"])
@pytest.mark.parametrize("part", [0, 1])
def test_nan_stays_nan_for_those_that_see_its_token_alone(
    isa: Isa, kv_dtype: Dtype, part: int
) -> None:
    cached = make_cached(FLOAT32, kv_dtype, isa=isa, num_heads=2, num_kv_heads=2)
    arrays, heads = make_step(cached, [20, 20], [20, 20], seed=0)
    heads[11, 2 + 2 * part, 3] = np.nan
    cached.run(arrays, heads)
    arrays, heads = make_step(cached, [21, 21], [1, 1], seed=1)
    assert np.isnan(cached.run(arrays, heads)).any(axis=-1).tolist() == [[True, False], [False] * 2]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("value", [np.inf, -np.inf])
def test_whole_numbers_of_what_is_infinite_are_nan(isa: Isa, value: float) -> None:
    cached = make_cached(FLOAT32, INT8, isa=isa, num_heads=1)
    arrays, heads = make_step(cached, [3], [3], seed=0)
    heads[1, 2, 7] = value
    cached.run(arrays, heads)
    decoded = cached.decoded(part=1)[arrays.attention.slots // 16, arrays.attention.slots % 16]
    assert np.isnan(decoded).all(axis=(1, 2)).tolist() == [False, True, False]


@pytest.mark.parametrize("isa", ISAS)
def test_each_code_of_e4m3_is_read_and_written_as_itself(isa: Isa) -> None:
    cached = make_cached(FLOAT32, FLOAT8_E4M3, isa=isa, num_heads=256, num_kv_heads=256)
    arrays, heads = make_step(cached, [1], [1], seed=0)
    values = to_float32(np.arange(256, dtype=np.uint8).view(FLOAT8_E4M3)) * KV_SCALES[1]
    heads[0, 512:] = values[:, None]
    np.testing.assert_allclose(cached.run(arrays, heads)[0], heads[0, 512:], rtol=1e-6, atol=0)
    decoded = cached.decoded(part=1)[arrays.attention.slots // 16, 0]
    np.testing.assert_array_equal(decoded[0], heads[0, 512:])

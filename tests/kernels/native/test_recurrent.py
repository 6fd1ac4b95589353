"""Convolutions, scans and gated norms of recurrent layers, natively and in plain NumPy."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from signalbox_kernels.floats import AnyArray, to_dtype, to_float32
from signalbox_kernels.native import Isa, NativeUnavailable
from signalbox_kernels.recurrent import Convolution, GatedNorm, Scan, StateLayout
from signalbox_kernels.structs import Activation, Row, ScanRule
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
from tests.kernels.native.recurrent_layers import (
    How,
    Layer,
    Rows,
    make_convolution,
    make_rows,
    make_scan,
    part,
)
from tests.kernels.native.reference import Doubles
from tests.kernels.native.test_group import make_groups, on_all
from tests.rounding import relative_error

SIZES = [(6, 3, 64, 48), (5, 5, 128, 128), (7, 1, 256, 16), (4, 2, 96, 80), (3, 1, 16, 256)]
"""Heads, heads of keys, sizes of keys and of values."""
SCANS = {
    f"{rule.name.lower()}-{'-'.join(map(str, sizes))}": (rule, sizes)
    for rule in ScanRule
    for sizes in SIZES
}
LAYERS: dict[str, How] = {
    "delta": make_scan(ScanRule.GATED_DELTA),
    "selective": make_scan(ScanRule.SELECTIVE),
    "convolution": make_convolution(112, 4),
    "doubly-gated": make_convolution(112, 3, is_doubly_gated=True),
}


def scanned(how: Scan, rows: Rows, state: AnyArray | None) -> reference.Scanned:
    """What a scan gives beside `Rows.x`, from a state as `Layer.state` returns it."""
    count, keys = len(rows.x), how.num_key_heads * how.key_size
    before = np.zeros((how.key_size, how.num_heads * how.value_size)) if state is None else state
    return reference.scan(
        how,
        rows.x[:, how.query : how.query + keys].reshape(count, -1, how.key_size),
        rows.x[:, how.key : how.key + keys].reshape(count, -1, how.key_size),
        rows.x[:, how.value :].reshape(count, how.num_heads, -1),
        rows.gates,
        before.reshape(how.key_size, how.num_heads, -1).swapaxes(0, 1),
    )


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", SCANS)
def test_scans_equal_the_reference(name: str, isa: Isa) -> None:
    """A result is a sum over keys of a state that is a sum over tokens, and decays by exponentials
    that are within some units in the last place."""
    rule, (num_heads, num_key_heads, key_size, value_size) = SCANS[name]
    sizes = {"num_heads": num_heads, "num_key_heads": num_key_heads, "key_size": key_size}
    how = make_scan(rule, **sizes, value_size=value_size)
    layer, state = Layer(how, isa), None
    pages = layer.take()
    for count, reads in ((19, None), (1, pages)):
        rows = make_rows(how, count, seed=count)
        expected = scanned(how, rows, state)
        (actual,) = layer.run(part(rows, 0, count, reads, (count, pages)))
        state = layer.state(pages)
        error = 2 * relative_error(key_size + 20 * count)
        assert (
            np.abs(actual.reshape(expected.out.shape) - expected.out)
            <= error * expected.terms.max()
        ).all()
        near = state.reshape(key_size, num_heads, -1).swapaxes(0, 1)
        assert np.abs(near - expected.state).max() <= error * np.abs(expected.state).max()


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("is_doubly_gated", [False, True])
@pytest.mark.parametrize("width", [2, 3, 4])
def test_convolutions_equal_the_reference(width: int, is_doubly_gated: bool, isa: Isa) -> None:
    """In steps of fewer and of more tokens than a state has."""
    how = make_convolution(112, width, is_doubly_gated=is_doubly_gated)
    layer, past = Layer(how, isa), np.zeros((width - 1, 112))
    pages, reads = layer.take(), None
    for count in (1, 2, 9, 1, 3):
        rows = make_rows(how, count, seed=count)
        x: Doubles = reference.wide(rows.x)
        inputs = x[:, :112] * x[:, 224:] if is_doubly_gated else x
        sums = reference.convolve(inputs, how.weight, how.bias, past)
        expected = sums * x[:, 112:224] if is_doubly_gated else reference.silu(sums)
        (actual,) = layer.run(part(rows, 0, count, reads, (count, pages)))
        reads, past = pages, np.concatenate([past, inputs])[1 - width :]
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(layer.state(pages), past, rtol=1e-6)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", LAYERS)
def test_a_row_depends_on_its_position_alone(name: str, isa: Isa) -> None:
    """Bit for bit, in a prompt or in steps, beside others or alone, on one thread or five, and
    wherever a state lies and is left."""
    how, count = LAYERS[name], 37
    rows, other = make_rows(how, count), make_rows(how, 20, seed=9)
    whole = Layer(how, isa)
    behind = whole.take()
    (expected,) = whole.run(part(rows, 0, count, None, (count, behind)))
    state = whole.state(behind)
    for num_threads, steps in ((1, [1] * count), (5, [16, 1, 2, 18]), (5, [3, 34])):
        layer = Layer(how, isa, num_threads=num_threads)
        own, own_of_other = layer.take(), layer.take()
        first, reads = 0, None
        for size in steps:
            taken = part(rows, first, first + size, reads, (size, own))
            if first == 0:
                poisoned = part(other, 0, 20, None, (20, own_of_other))
                poisoned.x[3:] = np.nan
                _, actual = layer.run(poisoned, taken)
            else:
                (actual,) = layer.run(taken)
            assert_same_bits(actual, expected[first : first + size])
            first, reads = first + size, own
        assert_same_bits(layer.state(own), state)


@pytest.mark.parametrize("name", LAYERS)
def test_a_sequence_leaves_states_behind_and_goes_on_in_others(name: str) -> None:
    """Two sequences of a step begin where another one was at position 18."""
    how, count = LAYERS[name], 37
    rows, layer = make_rows(how, count), Layer(LAYERS[name])
    first, left, again, end = (layer.take() for _ in range(4))
    (expected,) = layer.run(part(rows, 0, count, None, (count, end)))
    state = layer.state(end)
    split = part(rows, 0, count, None, (1, first), (17, left), (2, first), (17, again))
    (actual,) = layer.run(split)
    assert_same_bits(actual, expected)
    assert_same_bits(layer.state(again), state)
    kept = layer.state(left)
    one, two = layer.take(), layer.take()
    hits = layer.run(part(rows, 18, count, left, (19, one)), part(rows, 18, 19, left, (1, two)))
    assert_same_bits(hits[0], expected[18:])
    assert_same_bits(hits[1], expected[18:19])
    assert_same_bits(layer.state(one), state)
    assert_same_bits(layer.state(left), kept)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("name", LAYERS)
def test_states_are_settled_behind_the_drafts_that_stay(name: str, isa: Isa) -> None:
    """Bit for bit as single steps leave them, however many stay, and whatever the others are: of
    one sequence beside another one's drafts and a prompt."""
    how, known, num_drafts = LAYERS[name], 3, 18  # more than rows that are prepared together
    count = known + 1 + num_drafts
    rows, other = make_rows(how, count), make_rows(how, 9, seed=9)
    single = Layer(how, isa)
    expected, states = [], []
    of_single = single.take()
    for i in range(count):
        reads = of_single if i else None
        expected += single.run(part(rows, i, i + 1, reads, (1, of_single)))
        states.append(single.state(of_single))
    single.run(part(other, 0, 4, None, (4, of_single)))
    behind_other = single.state(of_single)
    for num_threads in (1, 5):
        layer = Layer(how, isa, num_threads=num_threads)
        own, left, of_other, of_prompt = (layer.take() for _ in range(4))
        for num_kept in range(num_drafts + 1):
            layer.run(part(rows, 0, known, None, (known, own)))
            step = part(rows, known, count, own, (1, own), (num_drafts, None))
            step.x = step.x.copy()
            step.x[1 + num_kept :] = np.nan
            drafts_of_other = part(other, 0, 9, None, (2, of_other), (7, None))
            prompt = part(other, 0, 9, None, (9, of_prompt))
            _, actual, _ = layer.run(drafts_of_other, step, prompt)
            for i in range(1 + num_kept):
                assert_same_bits(actual[i : i + 1], expected[known + i])
            assert_same_bits(layer.state(own), states[known])
            kept = [7 + i for i in range(num_kept)]
            if num_kept > 1:
                runs = (1, left), (num_kept - 1, own)
                of_both = part(other, 2, 4, of_other, (2, of_other))
                layer.settle([0, 1, *kept], of_both, part(rows, 0, num_kept, own, *runs))
                assert_same_bits(layer.state(left), states[known + 1])
                assert_same_bits(layer.state(of_other), behind_other)
            elif num_kept:
                layer.settle(kept, part(rows, 0, 1, own, (1, own)))
            assert_same_bits(layer.state(own), states[known + num_kept])


def test_rows_that_were_not_kept_cannot_be_settled() -> None:
    layer = Layer(LAYERS["delta"])
    rows, pages = make_rows(layer.how, 4), layer.take()
    layer.run(part(rows, 0, 4, None, (1, pages), (3, None)))
    for kept in (3, -1):
        with pytest.raises(ValueError, match="settles rows that were not kept"):
            layer.settle([kept], part(rows, 0, 1, pages, (1, pages)))
    layer.run(part(rows, 0, 1, pages, (1, pages)))
    with pytest.raises(ValueError, match="settles rows that were not kept"):
        layer.settle([0], part(rows, 0, 1, pages, (1, pages)))


@pytest.mark.parametrize("name", LAYERS)
def test_bits_do_not_depend_on_the_pages(name: str) -> None:
    """Pages of a unit, with room behind it, and behind another op's; others stay as they are."""
    how, count = LAYERS[name], 9
    rows = make_rows(how, count)
    unit = 64 * (how.key_size if isinstance(how, Scan) else how.weight.shape[1] - 1)
    results = []
    for page_bytes, before in ((unit, 0), (2 * unit + 64, 0), (3 * unit, 1), (1 << 20, 5)):
        layer = Layer(how, page_bytes=page_bytes, units_before=before)
        pages = layer.take()
        for first in (0, 4):
            reads = pages if first else None
            end = 4 if first == 0 else count
            results.append(layer.run(part(rows, first, end, reads, (end - first, pages)))[0])
        untouched = np.setdiff1d(np.arange(len(layer.pool)), pages)
        assert (layer.pool[untouched] == 0xFF).all()
        assert (layer.pool[pages[0], : 64 * before] == 0xFF).all()
    for i, result in enumerate(results):
        assert_same_bits(result, results[i % 2])


@pytest.mark.parametrize("rule", ScanRule)
def test_heads_may_be_divided_among_ranks(rule: ScanRule) -> None:
    """Each rank has some heads of keys, and those that they serve."""
    how, count = make_scan(rule, num_heads=6, num_key_heads=3), 12
    rows, layer = make_rows(how, count), Layer(how)
    (expected,) = layer.run(part(rows, 0, count, None, (count, layer.take())))
    keys, values = 3 * 64, 6 * 48
    for first, end in ((0, 1), (1, 3)):
        share = slice(2 * first, 2 * end)
        vectors = {"rates": how.rates[share], "biases": how.biases[share]}
        if how.skips is not None:
            vectors["skips"] = how.skips[share]
        sizes = {"num_heads": 2 * (end - first), "num_key_heads": end - first}
        own = replace(make_scan(rule, **sizes), **vectors)
        query, key, value = np.split(rows.x, [keys, 2 * keys], axis=1)
        parts = [x[:, 64 * first : 64 * end] for x in (query, key)]
        x = np.hstack([*parts, value[:, 96 * first : 96 * end]])
        gates = np.hstack([half[:, share] for half in np.split(rows.gates, 2, axis=1)])
        rank = Layer(own)
        (actual,) = rank.run(Rows(x, gates, None, [(count, rank.take())]))
        assert_same_bits(actual, np.ascontiguousarray(expected[:, 96 * first : 96 * end]))
    assert expected.shape == (count, values)


def test_heads_in_turn_read_the_keys_that_neighbours_would() -> None:
    """Heads in turn are those of the other order, which stand elsewhere."""
    how, count = make_scan(ScanRule.GATED_DELTA, num_heads=6, num_key_heads=3), 12
    rows, layer = make_rows(how, count), Layer(how)
    (expected,) = layer.run(part(rows, 0, count, None, (count, layer.take())))
    order = np.arange(6).reshape(3, 2).T.reshape(-1)
    columns = (48 * order[:, None] + np.arange(48)).reshape(-1)
    keys, values = np.split(rows.x, [2 * 3 * 64], axis=1)
    gates = np.hstack([half[:, order] for half in np.split(rows.gates, 2, axis=1)])
    turned = Layer(
        replace(how, heads_in_turn=True, rates=how.rates[order], biases=how.biases[order])
    )
    x = np.hstack([keys, values[:, columns]])
    (actual,) = turned.run(Rows(x, gates, None, [(count, turned.take())]))
    assert_same_bits(actual, np.ascontiguousarray(expected[:, columns]))


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("rule", ScanRule)
def test_steps_of_any_size_decay_states(rule: ScanRule, isa: Isa) -> None:
    """Gates far from zero leave all of a state, or nothing, and no NaN."""
    how = replace(make_scan(rule), step_limits=(0.0, np.inf))
    layer, rows = Layer(how, isa), make_rows(how, 8)
    rows.gates[:, ::3], rows.gates[:, 1::3] = 300.0, -300.0
    pages = layer.take()
    expected = scanned(how, rows, None)
    (actual,) = layer.run(part(rows, 0, 8, None, (8, pages)))
    error = 2 * relative_error(how.key_size + 20 * 8)
    assert (
        np.abs(actual.reshape(expected.out.shape) - expected.out).max()
        <= error * expected.terms.max()
    )


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("row", [Row.ELEMENTS, Row.CODES], ids=lambda row: row.name.lower())
@pytest.mark.parametrize("is_gated_first", [False, True])
def test_gated_norms_equal_the_reference(
    is_gated_first: bool, row: Row, isa: Isa, dtype: Dtype
) -> None:
    """The padding stays zero, also behind NaN; codes are those of the elements in float32."""
    how = GatedNorm(
        weight=make_floats(80, seed=3),
        num_groups=5,
        eps=1e-5,
        column=16,
        is_gated_first=is_gated_first,
    )
    builder = make_builder(dtype)
    source, gate = builder.buffer(80, row=Row.FLOATS), builder.buffer(112, row=Row.FLOATS)
    out, codes = builder.buffer(80), builder.buffer(80, row=row)
    builder.gated_norm(source, gate, out if row is Row.ELEMENTS else codes, how)
    program = make_program(builder, isa)
    x, gates = make_floats(21, 80, seed=1), make_floats(21, 112, seed=2)
    gates[7, 96:] = np.nan
    for buffer, values in ((source, x), (gate, gates)):
        width = values.shape[1]
        view = program.view(buffer, width=width, num_tokens=21, dtype=FLOAT32)
        view[:, :width] = values
    program.run(make_arrays(21))
    expected = reference.gated_rms_norm(x, gates[:, 16:96], how)
    normed = program.view(source, width=80, num_tokens=21, dtype=FLOAT32)
    assert_near(normed[:, :80], expected, FLOAT32)
    assert (normed[:, 80:] == 0).all()
    if row is Row.ELEMENTS:
        actual = program.view(out, width=80, num_tokens=21, dtype=dtype)
        assert_near(actual[:, :80], expected, dtype)


@pytest.mark.parametrize("isa", ISAS)
def test_a_norm_may_be_of_the_columns_of_all_ranks(isa: Isa) -> None:
    how = GatedNorm(weight=make_floats(96, seed=3), num_groups=1, eps=1e-5, is_gated_first=True)
    x, gates = make_floats(21, 96, seed=1), make_floats(21, 96, seed=2)
    programs = []
    for group in make_groups(2):
        own = slice(48 * group.rank, 48 * (group.rank + 1))
        builder = make_builder(FLOAT32)
        source, gate = (builder.buffer(48, row=Row.FLOATS) for _ in range(2))
        squares = builder.buffer(1, row=Row.SHARED), builder.buffer(1, row=Row.FLOATS)
        part = replace(how, weight=how.weight[own])
        out = builder.buffer(48)
        builder.gated_norm(source, gate, out, part, squares)
        program = make_program(builder, isa, group=group)
        for buffer, values in ((source, x), (gate, gates)):
            view = program.view(buffer, width=48, num_tokens=21, dtype=FLOAT32)
            view[:, :48] = values[:, own]
        programs.append(program)
    on_all([partial(program.run, make_arrays(21)) for program in programs])
    views = [one.view(out, width=48, num_tokens=21, dtype=FLOAT32) for one in programs]
    actual = np.concatenate([view[:, :48] for view in views], axis=1)
    assert_near(actual, reference.gated_rms_norm(x, gates, how), FLOAT32)


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
def test_rows_are_multiplied_with_sigmoids_of_gates(isa: Isa, dtype: Dtype) -> None:
    """The padding stays zero, whatever the columns behind the gates are."""
    builder = make_builder(dtype)
    rows, gate = builder.buffer(80), builder.buffer(128, row=Row.FLOATS)
    builder.multiply(rows, gate, column=32)
    program = make_program(builder, isa)
    x, gates = make_floats(21, 80, seed=1), make_floats(21, 128, seed=2)
    gates[:, 112:] = np.nan
    x = to_float32(to_dtype(x, dtype))
    actual = program.view(rows, width=80, num_tokens=21, dtype=dtype)
    actual[:, :80] = to_dtype(x, dtype)
    program.view(gate, width=128, num_tokens=21, dtype=FLOAT32)[:] = gates
    program.run(make_arrays(21))
    assert_near(actual[:, :80], x / (1 + np.exp(-reference.wide(gates[:, 32:112]))), dtype)
    assert (to_float32(actual[:, 80:]) == 0).all()


def test_gates_that_a_buffer_lacks_are_refused() -> None:
    builder = make_builder(FLOAT32)
    rows, gate = builder.buffer(80), builder.buffer(96, row=Row.FLOATS)
    builder.multiply(rows, gate, column=32)
    with pytest.raises(NativeUnavailable):
        make_program(builder)


REFUSED: dict[str, dict[str, Any]] = {
    "too many keys": {"key_size": 272},
    "keys of a part": {"key_size": 24},
    "values of a part": {"value_size": 40},
    "heads without keys": {"num_heads": 7},
    "columns": {"value": 400},
    "gates": {"strength": 7},
}


@pytest.mark.parametrize("name", REFUSED)
def test_scans_that_cannot_be_are_refused(name: str) -> None:
    how = make_scan(ScanRule.GATED_DELTA)
    builder, changed = make_builder(FLOAT32), replace(how, **REFUSED[name])
    source, gates, out = (builder.buffer(n, row=Row.FLOATS) for n in (672, 12, 288))
    builder.scan(source, gates, out, changed, StateLayout(1 << 15))
    with pytest.raises(NativeUnavailable, match="no native program"):
        make_program(builder)


@pytest.mark.parametrize(
    "changes",
    [
        {"weight": make_floats(112, 5)},
        {"weight": make_floats(104, 4)},
        {"column": 1},
        {"gate": 8},
        {"activation": Activation.GELU},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_convolutions_that_cannot_be_are_refused(changes: dict[str, Any]) -> None:
    how: Convolution = replace(make_convolution(112, 4), bias=None, **changes)
    builder = make_builder(FLOAT32)
    source, out = builder.buffer(112, row=Row.FLOATS), builder.buffer(112, row=Row.FLOATS)
    builder.convolve(source, out, how, StateLayout(1 << 15))
    with pytest.raises(NativeUnavailable, match="no native program"):
        make_program(builder)


def test_a_page_must_hold_a_unit() -> None:
    with pytest.raises(ValueError, match="a page of 4095 bytes is too small for a state"):
        Layer(make_scan(ScanRule.GATED_DELTA), page_bytes=4095)


def test_a_step_without_states_is_refused() -> None:
    layer = Layer(LAYERS["delta"])
    rows = make_rows(layer.how, 4)
    with pytest.raises(ValueError, match="has no states for all of its rows"):
        layer.program.run(make_arrays(4))
    with pytest.raises(ValueError, match="too few pages"):
        layer.run(part(rows, 0, 4, None, (4, layer.take()[:-1])))
    with pytest.raises(ValueError, match="has no states for all of its rows"):
        layer.run(part(rows, 0, 4, None, (3, layer.take())))

"""Mixtures of experts: what tokens choose, and the sums of what experts compute."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from signalbox_kernels.floats import AnyArray, to_dtype, to_float32
from signalbox_kernels.native import Isa, NativeUnavailable
from signalbox_kernels.op_parameters import Clamped, Experts, Routing
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.storage import QUANTISED, Storage, StoredMatrix
from signalbox_kernels.structs import Activation, Epilogue, Row, ScoreFunction
from tests.kernels.native.instruction_sets import ISAS
from tests.kernels.native.matrices import FLOAT32, make_floats, make_stored, values_of
from tests.kernels.native.programs import (
    ELEMENTS,
    Dtype,
    assert_near,
    assert_same_bits,
    make_arrays,
    make_builder,
    make_program,
)
from tests.kernels.native.reference import Doubles, wide

ROUTINGS = {
    "softmax": Routing(8, 3),
    "one": Routing(8, 1),
    "all": Routing(3, 3),
    "renormalised": Routing(8, 3, renormalises=True, scale=2.5),
    "common": Routing(8, 3, has_common=True),
    "sigmoid": Routing(8, 3, ScoreFunction.SIGMOID, renormalises=True, scale=1.5),
    "groups": Routing(12, 3, ScoreFunction.SIGMOID, num_groups=4, num_chosen_groups=2),
    "best-of-groups": Routing(12, 3, num_groups=4, num_chosen_groups=2, num_summed=1, scale=16.0),
}


def shares_of(scores: AnyArray, routing: Routing, bias: AnyArray | None) -> Doubles:
    """The share of each expert, [tokens, experts], and behind them that of an expert of all."""
    x, n = wide(scores)[:, : routing.num_experts], routing.num_experts
    risen = np.exp(x - x.max(axis=1, keepdims=True))
    sigmoids = 1 / (1 + np.exp(-wide(scores)))
    shares = sigmoids[:, :n]
    if routing.function is ScoreFunction.SOFTMAX:
        shares = risen / risen.sum(axis=1, keepdims=True)
    ranks = shares if bias is None else shares + bias
    if routing.num_groups > 1:
        groups = ranks.reshape(len(x), routing.num_groups, -1)
        best = np.sort(groups, axis=2)[:, :, -routing.num_summed :].sum(axis=2)
        left = np.argsort(-best, axis=1, kind="stable")[:, routing.num_chosen_groups :]
        np.put_along_axis(groups, left[:, :, None], -np.inf, axis=1)
        ranks = groups.reshape(x.shape)
    chosen = np.argsort(-ranks, axis=1, kind="stable")[:, : routing.num_chosen]
    found = np.zeros((len(x), n + 1))
    np.put_along_axis(found, chosen, np.take_along_axis(shares, chosen, axis=1), axis=1)
    if routing.renormalises:
        found /= found.sum(axis=1, keepdims=True)
    found *= routing.scale
    found[:, n] = sigmoids[:, n] if routing.has_common else 0
    return found


def make_scores(routing: Routing, num_tokens: int) -> NDArray[np.float32]:
    """Scores of which some are equal, and others far from zero."""
    scores = make_floats(num_tokens, routing.num_experts + 1, seed=num_tokens)
    scores[::3] = np.round(scores[::3])
    scores[1::5] *= 4
    scores[2:3] = 0
    return scores


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("name", ROUTINGS)
def test_tokens_choose_by_their_scores(name: str, biased: bool) -> None:
    """Experts whose rows are unit vectors show their shares; each row is in the order of tokens."""
    routing = ROUTINGS[name]
    n, k = routing.num_experts, routing.num_chosen
    bias = make_floats(n, seed=9) if biased else None
    scales = np.arange(1, n + 1, dtype=np.float32) if biased else None
    builder = make_builder(FLOAT32, hidden_size=n + 1)
    scores, out, common = (builder.buffer(n + 1, row=Row.FLOATS) for _ in range(3))
    ones = builder.buffer(1)
    gathered, rows = builder.buffer(1, copies=k), builder.buffer(n + 1, row=Row.FLOATS, copies=k)
    units = np.eye(n, n + 1, dtype=np.float32)[:, :, None]
    builder.route(scores, routing, bias, scales)
    builder.gather(ones, gathered)
    builder.linear(gathered, rows, as_experts(list(units)), None, Epilogue.STORE)
    builder.mix(rows, out, adds=False, common=common if routing.has_common else None)
    program = make_program(builder)
    for count in (1, 2, 60):
        given = make_scores(routing, count)
        for buffer, values in ((scores, given), (ones, 1.0), (common, np.eye(n + 1)[n])):
            width = 1 if buffer == ones else n + 1
            view = program.view(buffer, width=width, num_tokens=count, dtype=FLOAT32)
            view[:, :width] = values
        program.run(make_arrays(count))
        actual = program.view(out, width=n + 1, num_tokens=count, dtype=FLOAT32)[:, : n + 1]
        expected = shares_of(given, routing, bias)
        expected[:, :n] *= 1.0 if scales is None else scales
        assert ((actual != 0) == (expected != 0)).all()
        np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def as_experts(matrices: list[Any]) -> Experts:
    return Experts(matrices[0], iter(matrices[1:]), len(matrices))


class Mixture:
    """A feed-forward of experts in a program, whose scores are given."""

    routing = Routing(6, 2, renormalises=True)
    hidden, inner = 70, 48

    def __init__(
        self,
        dtype: Dtype,
        isa: Isa | None,
        gates: list[Any],
        downs: list[Any],
        *,
        row: Row = Row.ELEMENTS,
        num_threads: int = 2,
        biases: tuple[Any, Any] = (None, None),
        activation: Activation | Clamped = Activation.SILU,
        joins: bool = True,
    ) -> None:
        """Args: joins: multiplies gate and up at once."""
        self.dtype, k = dtype, self.routing.num_chosen
        self.biases, self.activation = biases, activation
        inner, self.hidden = downs[0].shape[1], downs[0].shape[0]
        builder = make_builder(dtype, hidden_size=self.hidden)
        self.scores = builder.buffer(self.routing.num_experts, row=Row.FLOATS)
        self.out = builder.buffer(self.hidden, row=Row.FLOATS)
        self.x, activated = builder.buffer(self.hidden), builder.buffer(inner, copies=k)
        rows = builder.buffer(self.hidden, row=Row.FLOATS, copies=k)
        builder.route(self.scores, self.routing)
        source = self.coded(builder, self.x, row, 0)
        gathered = builder.buffer(self.hidden, row=row, copies=k)
        builder.gather(source, gathered)
        if joins:
            ends = as_experts(gates), biases[0], Epilogue.GATED
            builder.linear(gathered, activated, *ends, activation=activation)
        else:
            gate = builder.buffer(inner, row=Row.FLOATS, copies=k)
            halves = [as_experts([np.split(one, 2)[i] for one in gates]) for i in (0, 1)]
            bias = (None, None) if biases[0] is None else np.split(biases[0], 2, axis=1)
            builder.linear(gathered, gate, halves[0], bias[0], Epilogue.STORE)
            ends = halves[1], bias[1], Epilogue.GATE
            builder.linear(gathered, activated, *ends, activation=activation, gate=gate)
        source = self.coded(builder, activated, row, k)
        builder.linear(source, rows, as_experts(downs), biases[1], Epilogue.STORE)
        builder.mix(rows, self.out, adds=True)
        self.program = make_program(builder, isa, num_threads)

    @staticmethod
    def coded(builder: ProgramBuilder, buffer: int, row: Row, copies: int) -> int:
        if row is Row.ELEMENTS:
            return buffer
        out = builder.buffer(builder.buffers[buffer].width, row=row, copies=copies)
        builder.code(buffer, out)
        return out

    def run(self, x: AnyArray, scores: AnyArray) -> AnyArray:
        """The sum with what was there, ones."""
        count = len(x)
        sizes = ((self.scores, scores, FLOAT32), (self.x, x, self.dtype))
        for buffer, values, dtype in (*sizes, (self.out, np.ones((count, self.hidden)), FLOAT32)):
            width = values.shape[1]
            view = self.program.view(buffer, width=width, num_tokens=count, dtype=dtype)
            view[:, :width] = values
        self.program.run(make_arrays(count))
        out = self.program.view(self.out, width=self.hidden, num_tokens=count, dtype=FLOAT32)
        return out[:, : self.hidden].copy()

    def expected(self, x: AnyArray, scores: AnyArray, gates: Any, downs: Any) -> Doubles:
        shares = shares_of(np.pad(scores, ((0, 0), (0, 1))), self.routing, None)
        out = np.ones((len(x), self.hidden))
        of_gates, of_downs = (np.zeros(len(gates)) if one is None else one for one in self.biases)
        for i, (gate, down) in enumerate(zip(gates, downs, strict=True)):
            left, up = np.split(wide(x) @ wide(gate).T + of_gates[i], 2, axis=1)
            scale = 1.0
            if isinstance(self.activation, Clamped):
                scale, limit = self.activation
                left, up = np.minimum(left, limit), 1 + np.clip(up, -limit, limit)
            with np.errstate(over="ignore"):
                inner = to_dtype(left / (1 + np.exp(-scale * left)) * up, self.dtype)
            out += shares[:, i, None] * (wide(inner) @ wide(down).T + of_downs[i])
        return out


def float_experts(dtype: Dtype, hidden: int = 70, inner: int = 48) -> tuple[list[Any], list[Any]]:
    count = Mixture.routing.num_experts
    gates = make_floats(count, 2 * inner, hidden, dtype=FLOAT32, seed=1) / np.sqrt(hidden)
    downs = make_floats(count, hidden, inner, dtype=FLOAT32, seed=2) / np.sqrt(inner)
    return list(to_dtype(gates, dtype)), list(to_dtype(downs, dtype))


@pytest.mark.parametrize(("isa", "dtype"), ELEMENTS)
@pytest.mark.parametrize("kind", ["plain", "clamped", "clamped apart"])
def test_mixtures_equal_the_reference(isa: Isa, dtype: Dtype, kind: str) -> None:
    """Also where all tokens choose the same, so that their rows are cut to several tiles."""
    gates, downs = float_experts(dtype)
    how: dict[str, Any] = {}
    if kind != "plain":
        biases = make_floats(6, 96, seed=3), make_floats(6, 70, seed=4)
        how = {"biases": biases, "activation": Clamped(1.7, 1.25), "joins": kind == "clamped"}
    mixture = Mixture(dtype, isa, gates, downs, **how)
    for count in (1, 5, 40, 400):
        x = make_floats(count, 70, dtype=dtype, seed=count)
        scores = make_scores(mixture.routing, count)[:, :6]
        if count == 400:
            scores[:] = np.arange(6)
        actual = mixture.run(x, scores)
        assert_near(actual, mixture.expected(x, scores, gates, downs), dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("row", [Row.CODES, Row.WIDE_CODES], ids=lambda row: row.name.lower())
@pytest.mark.parametrize("kind", [Storage.Q8_0, Storage.Q4_K, Storage.Q6_K], ids=lambda k: k.name)
def test_rows_of_experts_depend_on_nothing_but_themselves(
    isa: Isa, row: Row, kind: Storage
) -> None:
    """Bit for bit, on one thread or three, in any batch, and with NaN beside them."""
    count, hidden, inner = Mixture.routing.num_experts, 256, 256
    gates: list[StoredMatrix] = [make_stored(kind, 2 * inner, hidden, seed=i) for i in range(count)]
    downs = [make_stored(kind, hidden, inner, seed=9 + i) for i in range(count)]
    mixture = Mixture(FLOAT32, isa, gates, downs, row=row)
    x, most = make_floats(230, hidden, seed=1), 230
    scores = make_scores(mixture.routing, most)[:, :count]
    together = mixture.run(x, scores)
    values = ([values_of(one) for one in part] for part in (gates, downs))
    near = mixture.expected(x, scores, *values)
    tolerance = 0.02 if row is Row.CODES else 2e-3
    assert np.abs(together - near).max() < tolerance * np.abs(near).max()
    poisoned = x.copy()
    poisoned[7] = np.nan
    spoiled = scores.copy()
    spoiled[9] = np.nan
    others = [index for index in range(most) if index not in (7, 9)]
    assert_same_bits(mixture.run(poisoned, spoiled)[others], together[others])
    threads = Mixture(FLOAT32, isa, gates, downs, row=row, num_threads=3)
    for first, size in ((0, 1), (5, 16), (100, 33), (229, 1)):
        part = slice(first, first + size)
        assert_same_bits(threads.run(x[part], scores[part]), together[part])


@pytest.mark.parametrize("kind", Storage, ids=lambda kind: kind.name)
def test_every_storage_has_experts(kind: Storage) -> None:
    """Each beside the values that it stands for, which are multiplied as the same floats."""
    count, hidden, inner = Mixture.routing.num_experts, 256, 256
    gates = [make_stored(kind, 2 * inner, hidden, seed=i) for i in range(count)]
    downs = [make_stored(kind, hidden, inner, seed=9 + i) for i in range(count)]
    x, scores = make_floats(20, hidden, seed=1), make_scores(Mixture.routing, 20)[:, :count]
    stored = Mixture(FLOAT32, None, gates, downs).run(x, scores)
    values = ([to_float32(values_of(one)) for one in part] for part in (gates, downs))
    assert_same_bits(stored, Mixture(FLOAT32, None, *values).run(x, scores))
    assert kind in QUANTISED or kind.block_size == 1 or kind.is_float_codes


@pytest.mark.parametrize(
    "routing",
    [Routing(0, 0), Routing(4, 5), Routing(9, 2, num_groups=2), Routing(2000, 2), Routing(8, 3)],
    ids=str,
)
def test_routings_that_cannot_be_are_refused(routing: Routing) -> None:
    """The last one chooses more experts than the rows behind it are for."""
    builder = make_builder(FLOAT32)
    scores, rows = builder.buffer(9, row=Row.FLOATS), builder.buffer(50, copies=2)
    builder.route(scores, routing)
    builder.gather(builder.buffer(50), rows)
    with pytest.raises(NativeUnavailable, match="no native program"):
        make_program(builder)

"""A decoder of one layer over matrices of any storage, as a native program and as its meaning.

`python -m tests.kernels.native.small_decoder` prints, as JSON, the libraries that it has run and a
hash of all numbers that each instruction set computes: programs that two compilers have made give
the same.
"""

import hashlib
import itertools
import json
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from signalbox_kernels import build, native
from signalbox_kernels.adapters import AdapterSite, LoraPair
from signalbox_kernels.arena import Arena
from signalbox_kernels.filters import Filters
from signalbox_kernels.floats import AnyArray
from signalbox_kernels.native import Isa
from signalbox_kernels.op_parameters import Adapted, CachedLayer, LayerRotation, Norm, QueryKeyNorms
from signalbox_kernels.program import Program, ProgramShape
from signalbox_kernels.program_builder import ProgramBuilder
from signalbox_kernels.random import race_keys
from signalbox_kernels.sampling import Drawn, Draws, NativeSampler
from signalbox_kernels.storage import FLOAT_CODES, QUANTISED, Storage, quantise
from signalbox_kernels.structs import AttentionArrays, Element, Epilogue, Row, StepArrays
from tests.kernels.native.matrices import make_floats, make_stored, values_of
from tests.kernels.native.reference import linear, rms_norm, rotate, silu_and_mul, wide
from tests.native_kernels import available_isas

HIDDEN, HEADS, HEAD_SIZE, VOCAB, BLOCK_SIZE = 256, 3, 16, 97, 16
QUERIES = HEADS * HEAD_SIZE
EPS = 1e-5
SCALE = 0.25
STEPS = (37, 1, 1, 2)
"""Tokens of each step of the one sequence."""
NUM_TOKENS = sum(STEPS)

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Form:
    """Storage of the matrices, what they are multiplied with, and the type of K and V."""

    storage: Storage
    element: Element = Element.FLOAT32
    kv_element: Element = Element.FLOAT32
    factors: Row = Row.ELEMENTS
    """Rows that matrices are multiplied with."""

    def __str__(self) -> str:
        names = {Row.CODES: "8 bits", Row.WIDE_CODES: "16 bits"}
        factors = names.get(self.factors, self.element.name.lower())
        elements = f"{self.element.name.lower()} and {self.kv_element.name.lower()}"
        return f"{self.storage.name} in {factors} with {elements}"


def forms_of(isa: Isa) -> Iterator[Form]:
    """Yields the forms that an instruction set computes."""
    yield from (Form(storage) for storage in Storage)
    for row in (Row.CODES, Row.WIDE_CODES):
        yield from (Form(storage, factors=row) for storage in QUANTISED)
    narrow = Element.BFLOAT16
    yield from (Form(Storage.F32, kv_element=kv_element) for kv_element in tuple(Element)[1:])
    if native.multiplies_bfloat16(isa):
        yield from (Form(Storage.BF16, narrow, kv_element) for kv_element in Element)
        yield from (Form(storage, narrow, narrow) for storage in FLOAT_CODES)
        yield from (Form(storage, narrow, narrow, Row.CODES) for storage in QUANTISED)


def angles() -> Floats:
    """[positions, 2, half a head]."""
    frequencies = 10000.0 ** -(np.arange(0, HEAD_SIZE, 2) / HEAD_SIZE)
    radians = np.outer(np.arange(64), frequencies)
    return np.stack([np.cos(radians), np.sin(radians)], axis=1).astype(np.float32)


SITES = {
    "qkv": AdapterSite(("q", "k", "v"), (QUERIES, HEAD_SIZE, HEAD_SIZE), HIDDEN),
    "out": AdapterSite(("o",), (HIDDEN,), HIDDEN),
    "gate_up": AdapterSite(("gate", "up"), (HIDDEN, HIDDEN), HIDDEN, is_interleaved=True),
    "down": AdapterSite(("down",), (HIDDEN,), HIDDEN),
}
MODULES = [
    (module, rows)
    for site in SITES.values()
    for module, rows in zip(site.modules, site.num_rows, strict=True)
]
ADAPTED = ((), ("q", "k", "v", "o", "gate", "up", "down"), ("k", "up", "o"), ("gate", "down"))
"""Modules that each adapter changes: the first has no effect, each has a rank of its own."""


class SmallDecoder:
    """Weights of a form; queries, keys and values have a bias and norms, and the head is tied."""

    def __init__(self, form: Form, *, has_adapters: bool = False) -> None:
        self.form, self.has_adapters = form, has_adapters
        numbers = np.random.default_rng(6).integers(-1, len(ADAPTED), NUM_TOKENS)
        self.adapters = numbers.astype(np.int32)
        self.pairs = [
            {
                module: LoraPair(
                    make_floats(number + 2, HIDDEN, seed=40 + number) / 8,
                    make_floats(rows, number + 2, seed=50 + number) / 4,
                )
                for module, rows in MODULES
                if module in modules
            }
            for number, modules in enumerate(ADAPTED)
        ]
        sizes = {
            "table": (VOCAB, HIDDEN),
            "qkv": (QUERIES + 2 * HEAD_SIZE, HIDDEN),
            "out": (HIDDEN, HIDDEN),  # its first columns meet the heads; the rest meets zeros
            "gate_up": (2 * HIDDEN, HIDDEN),
            "down": (HIDDEN, HIDDEN),
        }
        self.matrices = {
            name: make_stored(form.storage, n, k, seed=seed)
            for seed, (name, (n, k)) in enumerate(sizes.items())
        }
        self.bias = make_floats(QUERIES + 2 * HEAD_SIZE, seed=10)
        self.norms = {name: make_floats(HIDDEN, seed=11 + i) for i, name in enumerate("amf")}
        self.norm_q, self.norm_k = make_floats(HEAD_SIZE, seed=20), make_floats(HEAD_SIZE, seed=21)
        self.tokens = np.random.default_rng(5).integers(0, VOCAB, NUM_TOKENS)

    def program(self, isa: Isa, num_threads: int) -> Program:
        matrices = self.matrices
        shape = ProgramShape(
            element=self.form.element,
            kv_element=self.form.kv_element,
            num_layers=1,
            num_heads=HEADS,
            num_kv_heads=1,
            head_size=HEAD_SIZE,
            block_size=BLOCK_SIZE,
            hidden_size=HIDDEN,
            vocab_size=VOCAB,
            scale=SCALE,
        )
        builder = ProgramBuilder(shape, Arena())
        residual = builder.buffer(HIDDEN, row=Row.FLOATS)
        left = builder.buffer(HIDDEN, row=self.form.factors)
        wide = builder.buffer(len(self.bias), row=Row.FLOATS)
        turned, attended = builder.buffer(QUERIES), builder.buffer(HIDDEN)
        gated = builder.buffer(HIDDEN)

        def factors(elements: int) -> int:
            if self.form.factors is Row.ELEMENTS:
                return elements
            builder.code(elements, left)
            return left

        plain = left if self.form.factors is Row.ELEMENTS else builder.buffer(HIDDEN)
        shrunk = builder.buffer(3 * 6)

        def normed(name: str) -> None:
            norm = Norm(weight=self.norms[name], eps=EPS)
            builder.norm(residual, left, norm)
            if self.has_adapters and plain != left:
                builder.norm(residual, plain, norm, for_adapters=True)

        def adapted(name: str, elements: int) -> Adapted | None:
            return Adapted(SITES[name], elements, shrunk) if self.has_adapters else None

        table = builder.arena.pack(matrices["table"])
        builder.embed(residual, table)
        normed("a")
        builder.linear(
            left, wide, matrices["qkv"], self.bias, Epilogue.STORE, adapted=adapted("qkv", plain)
        )
        norms = QueryKeyNorms(self.norm_q, self.norm_k, EPS)
        builder.rotate(wide, turned, CachedLayer(0), LayerRotation(), norms=norms)
        builder.attend(turned, attended, CachedLayer(0))
        source, added = factors(attended), adapted("out", attended)
        builder.linear(source, residual, matrices["out"], None, Epilogue.ADD, adapted=added)
        normed("m")
        added = adapted("gate_up", plain)
        builder.linear(left, gated, matrices["gate_up"], None, Epilogue.GATED, adapted=added)
        source, added = factors(gated), adapted("down", gated)
        builder.linear(source, residual, matrices["down"], None, Epilogue.ADD, adapted=added)
        builder.norm(residual, left, Norm(weight=self.norms["f"], eps=EPS), of_rows=True)
        builder.head(left, table)
        program = builder.build(angles(), num_threads=num_threads, isa=isa)
        element = self.form.element
        for slot, pairs in enumerate(self.pairs):
            program.set_adapter(slot, [site.pack(pairs, element) for site in program.sites])
        return program

    def logits(self, isa: Isa, *, num_threads: int = 2) -> tuple[Floats, AnyArray]:
        """Returns the logits of all tokens, [NUM_TOKENS, VOCAB], and the blocks of K and V."""
        program = self.program(isa, num_threads)
        pool = np.zeros((4, program.shape.block_bytes), dtype=np.uint8)
        program.bind(pool)
        ends = list(itertools.accumulate(STEPS))
        parts = [
            self._step(program, end - count, end) for count, end in zip(STEPS, ends, strict=True)
        ]
        return np.concatenate(parts), pool

    def _step(self, program: Program, start: int, end: int) -> Floats:
        count = end - start
        places = np.arange(start, end, dtype=np.int64)
        arrays = StepArrays(
            token_ids=self.tokens[start:end].astype(np.int64),
            positions=places,
            attention=AttentionArrays(
                slots=places,
                query_start=np.array([0, count], dtype=np.int64),
                context_lens=np.array([end], dtype=np.int64),
                block_tables=np.arange(4, dtype=np.int32)[None],
            ),
            row_tokens=np.arange(count, dtype=np.int64),
            logits_of_row=np.arange(count, dtype=np.int32),
            suppressed_end=np.zeros(count, dtype=np.int32),
            suppressed=np.empty(0, dtype=np.int32),
            argmax=np.empty(count, dtype=np.int32),
            is_finite=np.empty(count, dtype=np.uint8),
            logits=np.zeros((count, VOCAB), dtype=np.float32),
            adapters=self.adapters[start:end] if self.has_adapters else None,
        )
        program.run(arrays)
        assert arrays.is_finite.all()
        assert arrays.argmax.tolist() == arrays.logits.argmax(axis=1).tolist()
        return arrays.logits

    def exact_logits(self) -> NDArray[np.float64]:
        """Returns what the logits mean, in double precision and with no other rounding."""
        weights = {name: values_of(matrix) for name, matrix in self.matrices.items()}

        def product(name: str, x: NDArray[np.float64]) -> NDArray[np.float64]:
            result = linear(x, weights[name][:, : x.shape[1]])
            for number, pairs in enumerate(self.pairs if self.has_adapters else ()):
                rows, first = self.adapters == number, 0
                for module, num_rows in zip(SITES[name].modules, SITES[name].num_rows, strict=True):
                    if module in pairs:
                        a, b = map(wide, pairs[module])
                        added = linear(linear(x[rows], a[:, : x.shape[1]]), b)
                        result[rows, first : first + num_rows] += added
                    first += num_rows
            return result

        def normed_product(name: str, norm: Floats) -> NDArray[np.float64]:
            return product(name, rms_norm(hidden, norm, eps=EPS))

        hidden = wide(weights["table"][self.tokens])
        fused = normed_product("qkv", self.norms["a"]) + self.bias
        heads = fused.reshape(NUM_TOKENS, HEADS + 2, HEAD_SIZE)
        turns = angles()[:NUM_TOKENS]
        query = rotate(rms_norm(heads[:, :HEADS], self.norm_q, eps=EPS), turns)
        key = rotate(rms_norm(heads[:, HEADS : HEADS + 1], self.norm_k, eps=EPS), turns)[:, 0]
        scores = SCALE * np.einsum("qhd,kd->hqk", query, key)
        scores[:, np.triu(np.ones((NUM_TOKENS, NUM_TOKENS), dtype=bool), 1)] = -np.inf
        weight = np.exp(scores - scores.max(axis=-1, keepdims=True))
        weight /= weight.sum(axis=-1, keepdims=True)
        attended = np.einsum("hqk,kd->qhd", weight, heads[:, -1]).reshape(NUM_TOKENS, QUERIES)
        hidden = hidden + product("out", attended)
        gated = silu_and_mul(normed_product("gate_up", self.norms["m"]))
        hidden = hidden + product("down", gated)
        return linear(rms_norm(hidden, self.norms["f"], eps=EPS), weights["table"])


def draw(isa: Isa, logits: Floats) -> Drawn:
    """Draws from rows at several temperatures, by every filter and penalty."""
    rows = len(logits)
    index = np.arange(rows)
    seen = np.random.default_rng(1).integers(0, VOCAB, (rows, 8)).astype(np.int32)
    draws = Draws(
        logits=logits,
        logits_row=index.astype(np.int64),
        num_logprobs=np.full(rows, 5, dtype=np.int64),
        keys=race_keys(np.full(rows, 3, np.uint64), index.astype(np.int64), index.astype(np.int64)),
        temperature=(0.1 + 0.05 * index).astype(np.float32),
        filters=Filters(
            top_p=np.where(index % 2, 0.9, 1.0).astype(np.float32),
            min_p=np.where(index % 3, 0.0, 0.01).astype(np.float32),
            typical_p=np.where(index % 5, 1.0, 0.9).astype(np.float32),
            top_k=np.where(index % 4, 0, 20).astype(np.int64),
        ),
        presence=np.full(rows, 0.1, dtype=np.float32),
        frequency=np.full(rows, 0.2, dtype=np.float32),
        repetition=np.full(rows, 1.1, dtype=np.float32),
        owners=index.astype(np.int64),
        num_prompt=np.full(rows, 3, dtype=np.int64),
        num_tokens=np.full(rows, 8, dtype=np.int64),
        tokens=seen,
    )
    return NativeSampler(num_threads=2, isa=isa).run(draws)


def digest(*arrays: AnyArray) -> str:
    found = hashlib.sha256()
    for array in arrays:
        found.update(np.ascontiguousarray(array).tobytes())
    return found.hexdigest()[:16]


def hashes_of(isa: Isa) -> dict[str, str]:
    """Returns a hash of the results of each form, of draws, and of what floats are coded to."""
    found: dict[str, str] = {}
    for form in forms_of(isa):
        found[str(form)] = digest(*SmallDecoder(form).logits(isa))
    logits = 4 * make_floats(40, VOCAB, seed=30)
    drawn = draw(isa, logits)
    found["draws"] = digest(*(getattr(drawn, name) for name in Drawn.__slots__))
    for storage in (Storage.Q8_0, Storage.Q4_1):
        found[f"floats to {storage.name}"] = digest(quantise(logits, storage).blocks)
    return found


if __name__ == "__main__":
    sets = available_isas()
    names = [isa.name.lower() for isa in sets]
    libraries = build.find_or_build(build.COMMON, *names)
    result = {
        "libraries": sorted(map(str, libraries.values())),
        "hashes": {isa.name: hashes_of(isa) for isa in sets},
    }
    print(json.dumps(result))

"""Compiled structured outputs and their masks stay within bounds in bytes, states and CPU time."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from signalbox_contract.errors import Code
from signalbox_contract.sampling_params import SamplingParams
from signalbox_contract.structured_output.grammar_cost import GROWTH_BYTES, GrammarCost
from signalbox_worker.runner.loading.byte_tokenizer import tokenizer_files
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.sampling import compiled_grammar, grammar_masks, grammars
from signalbox_worker.sampling.grammars import Grammars
from tests.gpu_worker.builders import make_new, make_runner, make_step, make_table
from tests.gpu_worker.sampling.test_grammars import PROMPT, ids, make_grammars

GROWING = ("regex", "[a-z ]*a[a-z ]{100}")
"""Compiles at once; each mask that comes after an "a" adds states to its lexer."""
PLAIN = ("regex", "[a-z]+")


@pytest.fixture
def compiler() -> Iterator[Grammars]:
    compiler = make_grammars()
    yield compiler
    compiler.close()


def make_compiler_of_words(*, vocab_size: int = 8192) -> Grammars:
    """A vocabulary of words, so that a mask follows each of them through the lexer."""
    runner = make_runner(vocab_size=vocab_size)
    files = tokenizer_files(vocab_size=vocab_size, max_model_len=64)
    return Grammars(runner.model, tokenizer_json=files["tokenizer.json"])


def different(number: int) -> list[tuple[str, ...]]:
    return [("json_schema", f'{{"type":"integer","multipleOf":{1000 + i}}}') for i in range(number)]


@pytest.mark.parametrize("memory_bytes", [8 * GROWTH_BYTES, 1 << 40])
def test_what_is_kept_counts_for_what_it_costs(memory_bytes: int) -> None:
    model = SimulatedRunner().model
    files = SimulatedRunner().tokenizer_files()
    compiler = Grammars(model, tokenizer_json=files["tokenizer.json"], memory_bytes=memory_bytes)
    cost = GrammarCost(cpu_ns=1, peak_bytes=GROWTH_BYTES)  # each counts for twice that
    for constraint in different(64):
        compiler.prepare(constraint, cost).result()
    is_bounded = memory_bytes < 1 << 40
    assert (compiler.num_bytes <= 8 * GROWTH_BYTES) is is_bounded
    assert compiler.num_bytes == (4 if is_bounded else 64) * 2 * GROWTH_BYTES
    compiler.forget(different(64))
    assert compiler.num_bytes == 0
    compiler.close()


async def test_a_constraint_that_cannot_be_compiled_is_not_kept(compiler: Grammars) -> None:
    assert await compiler.prepared(PLAIN, GrammarCost()) is None
    fault = await compiler.prepared(("regex", "(a"), GrammarCost(), forgotten=[PLAIN])
    assert fault is not None
    assert "unclosed group" in fault
    assert compiler.num_bytes == 0


def test_a_grammar_that_has_grown_begins_again_and_its_masks_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The lexer is shared, so its bound would end every sequence of the same constraint."""
    output = ids("so a cat and a dog ran as fast as any car in a race that has lasted an age")
    monkeypatch.setattr(grammars, "MAX_LEXER_STATES", 250_000)
    unbounded = make_compiler_of_words()
    expected = [unbounded.grammar(GROWING).mask(output[:n]) for n in range(len(output))]
    monkeypatch.setattr(grammars, "MAX_LEXER_STATES", 300)
    bounded = make_compiler_of_words()
    compiled = bounded.prepare(GROWING).result()
    matchers = {id(compiled.matcher): compiled.matcher}
    grammar, sibling = bounded.grammar(GROWING), bounded.grammar(GROWING)
    for length, mask in enumerate(expected):
        assert mask is not None
        for one in (grammar.mask(output[:length]), sibling.mask(output[:length])):
            assert one is not None
            assert np.array_equal(one, mask), length
        matchers[id(compiled.matcher)] = compiled.matcher
    assert len(matchers) > 1, "it has not grown to the bound"
    unbounded.close()
    bounded.close()


@pytest.mark.parametrize("limit_s", [0.0, 60.0])
def test_a_sequence_whose_mask_takes_too_long_is_alone(
    compiler: Grammars, monkeypatch: pytest.MonkeyPatch, limit_s: float
) -> None:
    monkeypatch.setattr(compiled_grammar, "MAX_MASK_CPU_S", limit_s)
    runner = make_runner()
    table = make_table(runner, compiler)
    ruled = SamplingParams(structured_output=PLAIN)
    new = [make_new(1, PROMPT, [0], params=ruled), make_new(2, PROMPT, [1])]
    outcome = table.append_tokens(runner.execute(table.apply(make_step(1, new=new))))
    if limit_s:
        assert outcome.seq_ids.tolist() == [1, 2]
        return
    ((seq_id, failed),) = outcome.failures.items()
    assert seq_id == 1
    assert "structured output takes more than 0 ms for a token" in failed.message
    assert failed.code is Code.FAILED_PRECONDITION
    assert outcome.seq_ids.tolist() == [2]
    table.check()


class FakeGrammar:
    """Takes as much CPU time as it is told."""

    def __init__(self, last_ns: int, next_ns: int) -> None:
        self.mask_ns, self._next_ns = last_ns, next_ns

    def mask(self, output: object) -> str:
        self.mask_ns = self._next_ns
        return "mask"


@pytest.mark.parametrize(("limit_s", "num_dear"), [(0.2, 4), (1e9, 64)])
def test_the_masks_of_a_step_take_no_longer_together(
    monkeypatch: pytest.MonkeyPatch, limit_s: float, num_dear: int
) -> None:
    """64 masks of 50 ms, each of them within its own bound, would take the step 3.2 s."""
    monkeypatch.setattr(grammar_masks, "MAX_STEP_CPU_S", limit_s)
    asked: dict[int, Any] = {i: (FakeGrammar(40_000_000, 50_000_000), None) for i in range(64)}
    asked |= {100 + i: (FakeGrammar(50_000, 100_000), None) for i in range(128)}
    masks = grammar_masks.step_masks(asked)
    assert set(range(100, 228)) <= masks.found.keys()  # who is cheap goes first
    assert len(masks.found) == 128 + num_dear
    assert masks.found.keys() | masks.refused.keys() == asked.keys()
    assert all("those of the step took more than" in one for one in masks.refused.values())

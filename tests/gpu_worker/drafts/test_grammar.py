"""Drafts from grammars: each is the only token that may follow there."""

import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from signalbox_contract.sections.drafts import DraftSource
from signalbox_contract.structured_output.scope import WHOLE, Scope
from signalbox_worker.drafts.grammar import GrammarProposer
from signalbox_worker.drafts.proposer import NO_DRAFTS, NO_PREDICTION, DraftAsk
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.sampling import compiled_grammar
from signalbox_worker.sampling.compiled_grammar import Grammar
from signalbox_worker.sampling.grammars import Grammars

PERSON = {
    "type": "object",
    "properties": {"nickname": {"type": "string"}, "kind": {"const": "a person of the family"}},
    "required": ["nickname", "kind"],
    "additionalProperties": False,
}
TEXT = json.dumps({"nickname": "Ada", "kind": "a person of the family"})
END = "<end>"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    """Has tokens of several bytes, and such as end within a word of the schema."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=300,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator([TEXT, "nick kin person family"], trainer)
    return tokenizer


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Iterator[Grammars]:
    num_tokens, end = tokenizer.get_vocab_size(), tokenizer.token_to_id(END)
    model = replace(SimulatedRunner().model, vocab_size=num_tokens, eos_token_ids=(end,))
    grammars = Grammars(model, tokenizer_json=tokenizer.to_str().encode())
    yield grammars
    grammars.close()


def array(token_ids: list[int]) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)


def allowed(grammar: Grammar, output: list[int]) -> list[int]:
    mask = grammar.mask(array(output))
    assert mask is not None
    bits = np.unpackbits(mask.astype("<u4").view(np.uint8), bitorder="little")
    return np.flatnonzero(bits).tolist()


def test_a_forced_token_is_the_only_one_that_the_mask_allows(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    token_ids = tokenizer.encode(TEXT).ids
    grammar = grammars.grammar(("json_schema", json.dumps(PERSON)))
    num_forced = 0
    for length in range(len(token_ids) + 1):
        output = token_ids[:length]
        forced = grammar.forced(array(output))
        num_forced += bool(forced)
        for token_id in forced:
            assert allowed(grammar.fork(), output) == [token_id]
            output.append(token_id)
        assert allowed(grammar, token_ids[:length]) == allowed(grammar.fork(), token_ids[:length])
    assert num_forced > 5


REASONING = Scope(is_open=True, closing_token_ids=(7,), max_reasoning_tokens=1)


@pytest.mark.parametrize(
    ("scope", "output", "expected"),
    [
        (WHOLE, "", True),
        (WHOLE, "x family", False),  # does not conform
        (WHOLE, "the family", False),  # at the end
        (Scope(opening_token_ids=(7,), closing_token_ids=(8,)), "", False),  # it may reason
        (REASONING, "nickname", True),  # the budget is spent
        (REASONING, "", False),
    ],
)
def test_what_is_not_certain_is_not_proposed(
    grammars: Grammars, tokenizer: Tokenizer, scope: Scope, output: str, expected: bool
) -> None:
    grammar = grammars.grammar(("choice", "the family"), scope=scope)
    known = [1, 2, *tokenizer.encode(output).ids]
    drafts = GrammarProposer().propose_one(DraftAsk(1, array(known), 2, 2, NO_PREDICTION, grammar))
    if not expected:
        assert drafts == NO_DRAFTS
        return
    assert drafts.source is DraftSource.GRAMMAR
    assert 1 <= len(drafts.token_ids) <= 2
    assert allowed(grammar, known[2:]) == [drafts.token_ids[0]]


def test_after_a_dear_mask_nothing_is_asked(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    grammar = grammars.grammar(("choice", "the family"))
    assert grammar.forced(array([]))
    grammar.mask(array([]))
    monkeypatch.setattr(compiled_grammar, "_MAX_FORCED_NS", 0)
    assert grammar.mask_ns > 0
    assert grammar.forced(array([])) == []


def test_a_sequence_without_a_grammar_has_no_forced_tokens() -> None:
    ask = DraftAsk(1, array([1]), 1, 4, NO_PREDICTION, None)
    assert GrammarProposer().propose_one(ask) == NO_DRAFTS

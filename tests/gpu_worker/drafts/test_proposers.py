"""Drafts: what each source proposes, which source is chosen, and how much memory texts take."""

import logging
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_contract.sections.drafts import DraftSource
from signalbox_kernels import build
from signalbox_kernels.compilation import BuildError
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts import matcher_pool
from signalbox_worker.drafts.chain import ProposerChain, make_proposer
from signalbox_worker.drafts.matcher_pool import MatcherPool
from signalbox_worker.drafts.proposer import NO_DRAFTS, DraftAsk, Drafts, NoProposer, Proposer
from signalbox_worker.sampling.compiled_grammar import Grammar
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

VOCAB_SIZE = 50


def make_chain(**changed: object) -> Proposer:
    return make_proposer(SpeculationConfig(num_tokens=8, **changed), vocab_size=VOCAB_SIZE)


def make_ask(
    token_ids: Sequence[int],
    *,
    num_prompt: int | None = None,
    prediction: Sequence[int] = (),
    most: int = 8,
    seq_id: int = 1,
    grammar: Grammar | None = None,
) -> DraftAsk:
    return DraftAsk(
        seq_id,
        np.array(token_ids, dtype=np.int32),
        len(token_ids) if num_prompt is None else num_prompt,
        most,
        np.array(prediction, dtype=np.int32),
        grammar,
    )


def propose(proposer: Proposer, ask: DraftAsk) -> Drafts:
    (found,) = proposer.propose([ask])
    return found


@pytest.mark.parametrize(
    ("token_ids", "expected"),
    [
        ([1, 2, 3, 4, 5, 6, 9, 1, 2, 3], [4, 5, 6]),  # no more than are equal
        ([1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [4, 1, 2]),  # the most frequent
        ([1, 2, 3, 4, 9, 1, 2, 3, 5, 8, 1, 2, 3], [5, 8, 1]),  # else the last
        ([1, 2, 3, 5, 1, 2, 3, 6, 1, 2, 3, 7, 9, 2, 3], []),  # fewer than half agree
        ([1, 2, 3, 4, 9, 3], []),  # fewer than two are equal
        ([1], []),
    ],
)
def test_drafts_from_the_text_follow_its_newest_tokens(
    token_ids: list[int], expected: list[int]
) -> None:
    found = propose(make_chain(), make_ask(token_ids))
    assert [*found.token_ids] == expected
    assert found.source is DraftSource.TEXT


PREDICTION = range(10, 30)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ([], range(10, 18)),  # its beginning
        ([10], range(11, 19)),
        ([*range(10, 27)], [27, 28, 29]),
        ([*PREDICTION], []),
        ([10, 11, 5, 6], []),  # lost
        ([10, 11, 5, 6, 14, 15, 16], [17, 18, 19]),  # found again
        ([40, 41, 42, 43, 44], []),
    ],
)
def test_drafts_from_a_prediction_go_on_where_the_output_is(
    output: list[int], expected: Sequence[int]
) -> None:
    prompt = [1, 2, 3]
    ask = make_ask([*prompt, *output], num_prompt=3, prediction=PREDICTION)
    found = propose(make_chain(), ask)
    assert [*found.token_ids] == [*expected]
    assert not expected or found.source is DraftSource.PREDICTION


def test_of_prediction_and_text_the_longer_match_is_taken() -> None:
    known = [1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4, 5]
    chain = make_chain()
    near, far = [9, 3, 4, 5, 20, 21], [9, 8, 7, 1, 2, 3, 4, 5, 30, 31]
    text = propose(chain, make_ask(known, num_prompt=2, prediction=near))
    assert text == Drafts([6, 7, 1, 2, 3], DraftSource.TEXT, 5)
    prediction = propose(chain, make_ask(known, num_prompt=2, prediction=far, seq_id=2))
    assert prediction == Drafts([30, 31], DraftSource.PREDICTION, 6)


class Fixed(NoProposer):
    def __init__(self, *token_ids: int, num_matched: int) -> None:
        self.drafts = Drafts(token_ids, DraftSource.TEXT, num_matched)

    def propose_one(self, ask: DraftAsk) -> Drafts:
        return self.drafts


def test_longer_drafts_that_agree_with_better_ones_are_taken() -> None:
    forced, agrees = Fixed(1, 2, num_matched=100), Fixed(1, 2, 3, num_matched=3)
    differs = Fixed(1, 4, 5, 6, num_matched=4)
    ask = make_ask([1])
    assert propose(ProposerChain([forced, differs, agrees]), ask) is agrees.drafts
    assert propose(ProposerChain([forced, differs]), ask) is forced.drafts


def test_a_source_without_drafts_hides_those_of_no_other() -> None:
    found, nothing = Fixed(1, 2, num_matched=3), Fixed(num_matched=64)  # the end of a prediction
    for proposers in ([found, nothing], [nothing, found]):
        assert propose(ProposerChain(proposers), make_ask([1])) is found.drafts


class Asked(Fixed):
    """Keeps the sequences that it is asked about, and those that end."""

    def __init__(self, *token_ids: int) -> None:
        super().__init__(*token_ids, num_matched=0)
        self.asked: list[list[int]] = []
        self.forgotten: list[int] = []

    def propose(self, asks: Sequence[DraftAsk]) -> Sequence[Drafts]:
        self.asked.append([ask.seq_id for ask in asks])
        return super().propose(asks)

    def forget(self, seq_id: int) -> None:
        self.forgotten.append(seq_id)


def test_a_draft_model_is_asked_where_nothing_else_has_drafts() -> None:
    model = Asked(20, 21)
    config = SpeculationConfig(num_tokens=8)
    chain = make_proposer(config, vocab_size=VOCAB_SIZE, model=model)
    repeated, other = make_ask(REPEATED, seq_id=1), make_ask([1, 2, 3], seq_id=2)
    found = chain.propose([repeated, other, repeated])
    assert [[*one.token_ids] for one in found] == [[4, 1, 2], [20, 21], [4, 1, 2]]
    chain.propose([repeated])
    assert model.asked == [[2]], "and not at all where each has some"
    chain.forget(2)
    assert model.forgotten == [2]


@given(
    token_ids=st.lists(st.integers(0, 3), min_size=1, max_size=40),
    num_prompt=st.integers(1, 40),
    prediction=st.lists(st.integers(-1, 4) | st.just(2**31 - 1), max_size=20),
    most=st.integers(1, 8),
)
def test_drafts_are_few_and_in_the_vocabulary(
    token_ids: list[int], num_prompt: int, prediction: list[int], most: int
) -> None:
    chain = make_proposer(SpeculationConfig(num_tokens=8, min_match=1), vocab_size=4)
    ask = make_ask(token_ids, num_prompt=num_prompt, prediction=prediction, most=most)
    found = propose(chain, ask)
    assert len(found.token_ids) <= most
    assert all(0 <= token_id < 4 for token_id in found.token_ids)


REPEATED = [1, 2, 3, 4, 1, 2, 3]
BYTES_OF_ONE = 4 * 4 * 64


def test_a_sequence_that_ends_gives_its_memory_back() -> None:
    pool = MatcherPool(SpeculationConfig())
    for seq_id in range(3):
        assert pool.get((DraftSource.TEXT, seq_id), 20)
    assert pool.num_bytes == 3 * BYTES_OF_ONE
    for seq_id in range(3):
        pool.forget((DraftSource.TEXT, seq_id))
    assert pool.num_bytes == 0


def test_where_memory_is_short_what_is_not_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(matcher_pool, "_IDLE_USES", 4)
    chain = make_chain(matcher_bytes=2 * BYTES_OF_ONE)

    def found_of(seq_id: int) -> list[int]:
        return [*propose(chain, make_ask(REPEATED, seq_id=seq_id)).token_ids]

    assert [found_of(seq_id) for seq_id in (1, 2, 3)] == [[4, 1, 2], [4, 1, 2], []]
    assert found_of(2) == [4, 1, 2]
    assert found_of(3) == []
    assert found_of(3) == [4, 1, 2]  # the memory of 1
    assert found_of(2) == [4, 1, 2]
    assert found_of(1) == []
    chain.forget(2)
    assert found_of(1) == [4, 1, 2]


def test_a_text_that_outgrows_its_index_gets_another() -> None:
    chain = make_chain()
    for length in range(1, 400):
        drafts = propose(chain, make_ask([*REPEATED[:4] * 100][:length]))
        assert [*drafts.token_ids][:1] == ([] if length < 6 else [length % 4 + 1])


def test_without_native_kernels_texts_give_no_drafts(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*parts: str) -> None:
        raise BuildError("there is no C++ compiler")

    monkeypatch.setattr(build, "find_or_build", refuse)
    matcher_pool.library.cache_clear()
    with caplog.at_level(logging.WARNING):
        chain = make_chain()
    matcher_pool.library.cache_clear()
    assert propose(chain, make_ask(REPEATED)) == NO_DRAFTS
    assert "no drafts from texts and predictions: there is no C++ compiler" in caplog.text


def test_without_drafts_nothing_is_proposed() -> None:
    proposer = make_proposer(SpeculationConfig(), vocab_size=VOCAB_SIZE)
    assert propose(proposer, make_ask(REPEATED)) == NO_DRAFTS
    assert isinstance(proposer, NoProposer)


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"num_tokens": 65}, "from 0 to 64"),
        ({"min_match": 0}, "from 0 to 64"),
        ({"min_match": 5, "max_match": 4}, "the least must be"),
        ({"sources": (DraftSource.MTP,)}, "not come from MTP"),
    ],
)
def test_what_cannot_be_is_refused(changed: dict[str, object], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        SpeculationConfig(**changed)

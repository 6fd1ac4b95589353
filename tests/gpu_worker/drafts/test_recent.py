"""Drafts from recent outputs: of the same owner alone, and within a bound on their memory."""

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from signalbox_contract.sections.drafts import DraftSource
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.drafts.chain import make_proposer
from signalbox_worker.drafts.proposer import DraftAsk, EndedSequence, Proposer
from signalbox_worker.drafts.recent import CONTEXT, LEAST_BYTES, LEAST_MATCH, RecentOutputs
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

VOCAB_SIZE = 10_000
PROMPT = [5, 6, 7]
OUTPUT = [*range(100, 140)]


def make_recent(num_bytes: int = 1 << 20) -> Proposer:
    config = SpeculationConfig(
        num_tokens=8, sources=(DraftSource.TEXT, DraftSource.RECENT), recent_bytes=num_bytes
    )
    return make_proposer(config, vocab_size=VOCAB_SIZE)


def array(token_ids: Sequence[int]) -> np.ndarray:
    return np.array(token_ids, dtype=np.int32)


def end(proposer: Proposer, output: Sequence[int], *, owner: bytes = b"a") -> None:
    proposer.learn(EndedSequence(1, array([*PROMPT, *output]), len(PROMPT), owner, len(PROMPT)))
    proposer.forget(1)


def drafts(proposer: Proposer, token_ids: Sequence[int], *, owner: bytes = b"a") -> list[int]:
    ask = DraftAsk(2, array(token_ids), 1, 8, array([]), None, owner)
    (found,) = proposer.propose([ask])
    assert not found.token_ids or found.source is DraftSource.RECENT
    return [*found.token_ids]


def test_what_followed_in_a_recent_output_is_expected_again() -> None:
    proposer = make_recent()
    end(proposer, OUTPUT)
    assert drafts(proposer, [1, *OUTPUT[:6]]) == OUTPUT[6:12]
    assert drafts(proposer, [1, *OUTPUT[: LEAST_MATCH - 1]]) == []


def test_an_output_is_expected_behind_the_end_of_its_prompt() -> None:
    proposer = make_recent()
    prompt = [*range(500, 500 + 2 * CONTEXT)]
    proposer.learn(EndedSequence(1, array([*prompt, *OUTPUT]), len(prompt), b"a", len(prompt)))
    assert drafts(proposer, prompt) == OUTPUT[:8]
    assert drafts(proposer, prompt[:CONTEXT]) == []  # what lies further back is not kept


def test_drafts_end_with_the_output_that_they_are_from() -> None:
    proposer = make_recent()
    end(proposer, OUTPUT)
    end(proposer, range(200, 240))
    assert drafts(proposer, [1, *OUTPUT[-10:-2]]) == OUTPUT[-2:]
    assert drafts(proposer, [1, *OUTPUT[-10:]]) == []


@pytest.mark.parametrize("other", [b"b", b"", b"aa"])
def test_no_other_owner_has_drafts_of_an_output(other: bytes) -> None:
    proposer = make_recent()
    end(proposer, OUTPUT)
    assert drafts(proposer, [1, *OUTPUT[:6]], owner=other) == []
    end(proposer, [*OUTPUT[:6], *range(300, 320)], owner=other)
    assert drafts(proposer, [1, *OUTPUT[:6]]) == OUTPUT[6:12]


def test_what_has_no_owner_is_not_kept() -> None:
    proposer = make_recent()
    end(proposer, OUTPUT, owner=b"")
    assert drafts(proposer, [1, *OUTPUT[:6]], owner=b"") == []


def test_a_prompt_without_an_output_is_not_kept() -> None:
    proposer = make_recent()
    proposer.learn(EndedSequence(1, array(OUTPUT), len(OUTPUT), b"a", len(OUTPUT)))
    assert drafts(proposer, OUTPUT[:8]) == []


def test_a_sequence_that_comes_back_adds_only_what_it_drew_since() -> None:
    proposer = make_recent()
    tokens = array([*PROMPT, *OUTPUT])
    num_before = len(PROMPT) + 25
    proposer.learn(EndedSequence(1, tokens[:num_before], len(PROMPT), b"a", len(PROMPT)))
    proposer.learn(EndedSequence(1, tokens, len(PROMPT), b"a", num_before))
    assert drafts(proposer, [1, *OUTPUT[20:26]]) == OUTPUT[26:32]
    assert drafts(proposer, [1, *OUTPUT[:6]]) == OUTPUT[6:12]
    proposer.learn(EndedSequence(1, tokens, len(PROMPT), b"b", len(tokens)))
    assert drafts(proposer, [1, *OUTPUT[:6]], owner=b"b") == []


def test_the_owner_that_was_not_used_longest_goes_first() -> None:
    proposer = make_recent(2 * LEAST_BYTES)
    end(proposer, OUTPUT, owner=b"a")
    end(proposer, OUTPUT, owner=b"b")
    assert drafts(proposer, OUTPUT[:6], owner=b"a")
    end(proposer, OUTPUT, owner=b"c")
    found = {owner: bool(drafts(proposer, OUTPUT[:6], owner=owner)) for owner in (b"a", b"b", b"c")}
    assert found == {b"a": True, b"b": False, b"c": True}


def test_memory_stays_within_its_bound_and_the_newest_output_is_found() -> None:
    config = SpeculationConfig(num_tokens=8, recent_bytes=5 * LEAST_BYTES)
    outputs = RecentOutputs(config)
    tokens = itertools.count()
    rng = np.random.default_rng(1)
    for number in range(300):
        output = array([*itertools.islice(tokens, int(rng.integers(1, 2000)))])
        owner = bytes([number % 3])
        outputs.add(owner, output)
        assert outputs.num_bytes <= config.recent_bytes
        text = outputs.get(owner)
        assert text is not None
        if len(output) > 8:
            assert text.find(output[:-2], most=8).token_ids[:2] == output[-2:].tolist()


def test_texts_that_are_dropped_are_found_no_more_and_others_grow() -> None:
    outputs = RecentOutputs(SpeculationConfig(num_tokens=8, recent_bytes=LEAST_BYTES))
    first, *_, last = texts = [array(range(start, start + 300)) for start in range(0, 3000, 300)]
    for output in texts:
        outputs.add(b"a", output)
    text = outputs.get(b"a")
    assert text is not None
    assert text.find(last[:9], most=2).token_ids == last[9:11].tolist()
    assert text.find(first[:9], most=2).token_ids == []
    assert outputs.num_bytes == LEAST_BYTES

"""The rows of a draft model: which sequence has them, what is computed in them, who loses them."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_worker.batch.arrays import Int32Array
from signalbox_worker.runner.draft_model.draft_cache import IDLE_STEPS, DraftCache, KeptSequence

SIZE = 4


def make_cache(num_rows: int) -> DraftCache:
    return DraftCache(num_rows=num_rows, block_size=SIZE)


def tokens(*token_ids: int) -> Int32Array:
    return np.array(token_ids, dtype=np.int32)


@pytest.mark.parametrize(
    ("known", "num_computed"),
    [
        ((1, 2, 3, 7, 8, 9, 5), 6),  # all are accepted
        ((1, 2, 3, 7, 8, 5), 5),
        ((1, 2, 3, 5), 3),  # none is
        ((1, 2, 3, 7), 3),  # the last one is computed again
        ((1, 2, 3), 2),  # nothing was drawn
    ],
)
def test_only_drafts_that_were_drawn_stay_computed(
    known: tuple[int, ...], num_computed: int
) -> None:
    kept = KeptSequence(num_known=3, drafts=[7, 8, 9])
    kept.settle(tokens(*known))
    assert (kept.num_known, kept.num_computed, kept.drafts) == (num_computed, num_computed, [])


def test_a_sequence_has_rows_for_its_tokens_and_as_many_drafts_as_fit() -> None:
    cache = make_cache(3)
    cache.get(1)
    assert cache.reserve(1, least=5, most=7) == 8
    assert cache.reserve(1, least=8, most=20) == 12
    cache.get(2)
    assert cache.reserve(2, least=1, most=1) == 0
    cache.forget(1)
    assert cache.reserve(2, least=1, most=1) == 4
    cache.check()


def test_one_that_outgrows_the_rows_gives_its_own_back() -> None:
    cache = make_cache(3)
    cache.get(1)
    kept = cache.get(2)
    cache.reserve(1, least=8, most=8)
    assert cache.reserve(2, least=4, most=4) == 4
    kept.num_known = 4
    assert cache.reserve(2, least=5, most=5) == 0
    assert (kept.rows, kept.num_known, cache.num_free_rows) == ([], 0, 1)
    cache.check()


def test_rows_of_a_sequence_that_is_not_asked_about_go_to_others() -> None:
    cache = make_cache(2)
    cache.begin_step()
    for seq_id in (1, 2):
        cache.get(seq_id)
        assert cache.reserve(seq_id, least=4, most=4)
    for _ in range(IDLE_STEPS):
        cache.begin_step()
        cache.get(2)
    cache.get(3)
    assert cache.reserve(3, least=4, most=4) == 0
    cache.begin_step()
    assert cache.get(2).rows
    cache.get(3)
    assert cache.reserve(3, least=4, most=4) == 4
    assert cache.get(1).rows == []
    cache.check()


@given(
    calls=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 20), st.integers(0, 6), st.booleans())
    )
)
def test_each_row_is_free_or_one_sequences(calls: list[tuple[int, int, int, bool]]) -> None:
    cache = make_cache(7)
    for seq_id, num_tokens, more, ends in calls:
        cache.begin_step()
        kept = cache.get(seq_id)
        kept.num_known = min(kept.num_known, num_tokens)
        room = cache.reserve(seq_id, least=num_tokens, most=num_tokens + more)
        assert room == 0 or room >= num_tokens
        kept.num_known = num_tokens if room else 0
        if ends:
            cache.forget(seq_id)
        cache.check()
    for seq_id in range(5):
        cache.forget(seq_id)
    assert cache.num_free_rows == 7

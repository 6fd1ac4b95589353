"""Places in a text, against the words of csrc/matching/matcher.h in plain Python."""

from collections import Counter
from collections.abc import Sequence

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from signalbox_kernels.matching import Continuation, Matcher, bytes_of_matcher
from tests.native_kernels import skip_without_native_kernels

skip_without_native_kernels()

TOKENS = st.integers(0, 2)
"""So few that texts repeat themselves."""


def expected_match(
    text: Sequence[int], newest: Sequence[int], *, min_match: int, max_match: int, most: int
) -> Continuation:
    """Compares all places, and counts what follows them."""

    def num_equal(place: int) -> int:
        num_compared = min(place, len(newest), max_match)
        pairs = ((text[place - 1 - i], newest[-1 - i]) for i in range(num_compared))
        return next((i for i, (one, other) in enumerate(pairs) if one != other), num_compared)

    equal = {place: num_equal(place) for place in range(1, len(text))}
    best = max(equal.values(), default=0)
    if best < min_match:
        return Continuation([], 0)
    known, following = [*text], []
    places = [place for place in reversed(equal) if equal[place] == best]
    num_places = len(places)
    for i in range(min(most, best)):
        next_tokens = Counter(known[place + i] for place in places if place + i < len(known))
        if not next_tokens:
            break
        token_id, count = next_tokens.most_common(1)[0]  # of equal counts the first is the last
        if 2 * count < num_places:
            break
        following.append(token_id)
        if newest is text:
            known.append(following[-1])
        places = [p for p in places if known[p + i : p + i + 1] == following[-1:]]
    return Continuation(following, best)


def array(tokens: Sequence[int]) -> np.ndarray:
    return np.array(tokens, dtype=np.int32)


@given(
    text=st.lists(TOKENS, min_size=1, max_size=200),
    lengths=st.lists(st.integers(1, 200), max_size=5),
    min_match=st.integers(1, 3),
    more=st.integers(0, 20),
    most=st.integers(1, 10),
)
def test_a_text_that_grows_finds_what_all_places_say(
    text: list[int], lengths: list[int], min_match: int, more: int, most: int
) -> None:
    lengths = sorted({min(length, len(text)) for length in [*lengths, len(text)]})
    whole = array(text)
    matcher = Matcher(len(text), min_match=min_match, max_match=min_match + more)
    for length in lengths:
        known = text[:length]
        found = matcher.find(whole[:length], whole[:length], most=most)
        assert found == expected_match(
            known, known, min_match=min_match, max_match=min_match + more, most=most
        )


@given(
    text=st.lists(TOKENS, max_size=60),
    newest=st.lists(TOKENS, max_size=60),
    min_match=st.integers(1, 3),
    most=st.integers(1, 10),
)
def test_another_text_is_followed_up_to_its_end(
    text: list[int], newest: list[int], min_match: int, most: int
) -> None:
    matcher = Matcher(len(text), min_match=min_match, max_match=12)
    found = matcher.find(array(text), array(newest), most=most)
    assert found == expected_match(text, newest, min_match=min_match, max_match=12, most=most)


def test_a_long_text_is_indexed_in_several_calls() -> None:
    text = array([*range(100_000), *range(5_000, 5_008)])
    matcher = Matcher(len(text), min_match=3, max_match=64)
    calls = [matcher.find(text, text, most=4) for _ in range(5)]
    assert calls[0] == Continuation([], 0)
    assert calls[-1] == Continuation([5_008, 5_009, 5_010, 5_011], 8)


def test_one_of_very_many_places_is_found() -> None:
    text = array([7] * 5_000)
    assert Matcher(5_000, min_match=3, max_match=64).find(text, text, most=5).token_ids == [7] * 5


def test_a_text_that_is_shorter_is_another_one() -> None:
    matcher = Matcher(60, min_match=2, max_match=8)
    long, short = array([1, 2, 3, 4] * 15), array([5, 1, 2, 6, 1, 2])
    matcher.find(long, long, most=4)
    assert matcher.find(short, short, most=4) == Continuation([6, 1], 2)


def test_a_token_takes_few_bytes() -> None:
    for num_tokens in (100, 1_000, 32_000, 32_768, 100_000):
        matcher = Matcher(num_tokens, min_match=3, max_match=64)
        assert matcher.num_bytes == bytes_of_matcher(num_tokens) <= 40 * num_tokens
        assert matcher.capacity > num_tokens

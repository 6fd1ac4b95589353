from collections.abc import Iterator
from itertools import pairwise, product

from hypothesis import example, given
from hypothesis import strategies as st

from signalbox_router.prompt.tokenization.detokenizer import MARK
from signalbox_router.requests.stop_strings import StopStringScanner, compile_patterns

# Few letters, so that matches, overlaps and false starts are common.
TEXTS = st.text("ab😀", max_size=30)
STOPS = st.lists(st.text("ab😀", min_size=1, max_size=5), min_size=1, max_size=4)


def make_scanner(*stops: str) -> StopStringScanner:
    return StopStringScanner(compile_patterns(stops))


def first_complete(text: str, stops: list[str]) -> tuple[int, str] | None:
    """Returns where the winning stop string begins: it ends first, then it is the longest."""
    ends = [(text.find(stop) + len(stop), -len(stop), stop) for stop in stops if stop in text]
    if not ends:
        return None
    end, _, stop = min(ends)
    return end - len(stop), stop


def scan_pieces(scanner: StopStringScanner, pieces: list[str]) -> tuple[str, str | None]:
    sent = ""
    for piece in pieces:
        scan = scanner.push(piece)
        sent += scan.text
        if scan.stop is not None:
            return sent, scan.stop
    return sent + scanner.flush(), None


def split(text: str, cuts: list[int]) -> list[str]:
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    return [text[start:end] for start, end in pairwise(places)]


@given(TEXTS, STOPS, st.lists(st.integers(0, 100), max_size=8))
@example("aabaab", ["aabaa", "abaab"], [1, 2, 3, 4, 5])
def test_finds_what_a_search_of_the_whole_text_finds(
    text: str, stops: list[str], cuts: list[int]
) -> None:
    expected = first_complete(text, stops)
    sent, found = scan_pieces(make_scanner(*stops), split(text, cuts))
    if expected is None:
        assert (sent, found) == (text, None)
    else:
        assert (sent, found) == (text[: expected[0]], expected[1])


@given(st.text(f"ab{MARK}", max_size=30), STOPS, st.lists(st.integers(0, 100), max_size=8))
def test_marks_change_no_match(text: str, stops: list[str], cuts: list[int]) -> None:
    plain = text.replace(MARK, "")
    expected = scan_pieces(make_scanner(*stops), [plain])
    sent, found = scan_pieces(make_scanner(*stops), split(text, cuts))
    assert (sent.replace(MARK, ""), found) == expected
    assert text.startswith(sent)


@given(TEXTS, st.text("ab", min_size=1, max_size=5), st.lists(st.integers(0, 100), max_size=8))
def test_one_string_is_found_where_str_find_finds_it(text: str, stop: str, cuts: list[int]) -> None:
    sent, found = scan_pieces(make_scanner(stop), split(text, cuts))
    place = text.find(stop)
    assert (sent, found) == ((text, None) if place < 0 else (text[:place], stop))


def test_every_short_pattern_is_found_in_every_short_text() -> None:
    """Random texts seldom hold the false starts that a match must fall back from."""
    texts = [*words_up_to(7)]
    for stop in words_up_to(4):
        patterns = compile_patterns([stop])
        for text in texts:
            sent, found = scan_pieces(StopStringScanner(patterns), list(text))
            before, middle, _ = text.partition(stop)
            assert (sent, found) == (before, middle or None)


def words_up_to(length: int) -> Iterator[str]:
    for size in range(1, length + 1):
        yield from map("".join, product("ab", repeat=size))


def test_a_match_that_did_not_count_may_be_the_start_of_one_that_does() -> None:
    scanner = make_scanner("aba")
    assert scanner.push("aba", armed=False) == ("ab", None)
    assert scanner.push("ba") == ("", "aba")


@given(TEXTS, STOPS)
def test_no_more_text_is_held_back_than_may_begin_a_stop_string(
    text: str, stops: list[str]
) -> None:
    scanner = make_scanner(*stops)
    sent = ""
    for char in text:
        scan = scanner.push(char)
        if scan.stop is not None:
            return
        sent += scan.text
    held = text[len(sent) :]
    candidates = [n for s in stops for n in range(len(s)) if text.endswith(s[:n])]
    assert len(held) == max(candidates)


def test_a_string_that_ends_while_not_armed_does_not_count() -> None:
    scanner = make_scanner("ab")
    assert scanner.push("xab", armed=False).text == "xab"
    assert scanner.push("ca", armed=True) == ("c", None)
    assert scanner.push("b", armed=True) == ("", "ab")


def test_a_string_may_begin_before_it_counts() -> None:
    scanner = make_scanner("ab")
    scanner.push("xa", armed=False)
    assert scanner.push("b") == ("", "ab")


@given(TEXTS, STOPS, st.integers(0, 30))
def test_what_ends_after_it_is_armed_is_found_wherever_it_begins(
    text: str, stops: list[str], armed_from: int
) -> None:
    scanner = make_scanner(*stops)
    sent, found = "", None
    for end, char in enumerate(text, start=1):
        scan = scanner.push(char, armed=end >= armed_from)
        sent += scan.text
        if found := scan.stop:
            break
    ends = list(range(max(1, armed_from), len(text) + 1))
    expected = next((e for e in ends if text[:e].endswith(tuple(stops))), None)
    if expected is None:
        assert (sent + scanner.flush(), found) == (text, None)
    else:
        assert found is not None
        assert sent + found == text[:expected]

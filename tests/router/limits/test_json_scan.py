"""What is counted of a JSON text agrees with what a parser makes of it."""

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from signalbox_router.limits import json_scan
from signalbox_router.limits.json_scan import MAX_MEMBERS, TooManyMembers, measure, scan

pytestmark = pytest.mark.slow

TEXTS = st.text(alphabet='a",:[]{}\\é \n\U0001f600', max_size=12)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXTS, inner, max_size=4),
    max_leaves=30,
)
OBJECTS = st.dictionaries(TEXTS, VALUES, max_size=6)


@pytest.fixture(params=[1, 3, 1 << 15], autouse=True, scope="module")
def window(request: pytest.FixtureRequest) -> Any:
    """Cuts the texts at every place, between a backslash and its quote too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_scan, "WINDOW_BYTES", request.param)
        yield


def num_values(value: Any) -> int:
    """Returns the commas and opening brackets of a value, as JSON has them."""
    children = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(children, list):
        return 0
    return 1 + max(0, len(children) - 1) + sum(map(num_values, children))


def depth_of(value: Any) -> int:
    children = list(value.values()) if isinstance(value, dict) else value
    return 1 + max(map(depth_of, children), default=0) if isinstance(children, list) else 0


@settings(max_examples=50)
@given(value=VALUES, ascii_only=st.booleans(), indent=st.none() | st.just(2))
def test_values_and_depth_are_those_of_the_parsed_text(
    value: Any, ascii_only: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent).encode()
    assert measure(text) == (num_values(value), depth_of(value))


@settings(max_examples=50)
@given(value=OBJECTS, ascii_only=st.booleans())
def test_members_are_those_of_the_outermost_object(value: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode()
    first, *members, last = scan(text).members
    assert (text[first.start : first.end], last.end) == (b"", len(text))
    if not value:
        members = []
    found = [json.loads(b"{%b}" % text[one.start : one.end]) for one in members]
    assert found == [{key: value[key]} for key in value]
    assert [one.num_values for one in members[:-1]] == [
        1 + num_values(one) for one in list(value.values())[:-1]
    ]


def nesting(text: bytes) -> int:
    """Returns how many brackets are open at the end of a JSON text's beginning."""
    brackets = re.sub(rb'"(\\.|[^"\\])*"', b"", text)
    return sum(map(brackets.count, (b"[", b"{"))) - sum(map(brackets.count, (b"]", b"}")))


@settings(max_examples=50)
@given(value=OBJECTS)
def test_cuts_lie_between_items(value: dict[str, Any]) -> None:
    text = json.dumps(value).encode()
    for member in scan(text).members:
        for level, cuts in enumerate(member.cuts, start=2):
            for at in cuts:
                assert text[at : at + 1] == b","
                assert nesting(text[:at]) == level


@settings(max_examples=50)
@given(text=st.binary(max_size=60))
def test_any_bytes_are_measured(text: bytes) -> None:
    measure(text)
    scan(text)


def test_what_stands_in_a_string_is_not_counted() -> None:
    text = json.dumps({"a": '",[{}]:\\' * 1000, "b": "\\" * 1001}).encode()
    assert measure(text) == (2, 1)
    assert len(scan(text).members) == 4


def test_more_members_than_a_body_has_are_not_told_apart() -> None:
    def text(count: int) -> bytes:
        return b"{%b}" % b",".join(b'"":1' for _ in range(count))

    scan(text(MAX_MEMBERS - 2))
    with pytest.raises(TooManyMembers):
        scan(text(MAX_MEMBERS + 1))

"""Reasoning in the encoding that clients keep for us."""

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from signalbox_router.apis.agents import decode_reasoning, encode_reasoning, omitted_header


@given(st.text())
def test_reasoning_comes_back_from_its_encoding_alone(text: str) -> None:
    encoded = encode_reasoning(text)
    assert encoded.isascii() and encoded.isprintable()
    assert decode_reasoning(encoded) == text
    for i in range(0, len(encoded), 7):
        assert decode_reasoning(encoded[:i] + encoded[i + 1 :]) is None


@pytest.mark.parametrize(
    "foreign", ["", "sb1-", "sb1-A", "sb1-é", "EqQBCkYICxgC", base64.b64encode(bytes(64)).decode()]
)
def test_what_another_server_has_encoded_is_not_read(foreign: str) -> None:
    assert decode_reasoning(foreign) is None


def test_the_header_of_tools_that_are_left_out_cannot_be_ended_by_a_name() -> None:
    assert not omitted_header([])
    (value,) = omitted_header(["web_search", "a\r\nb: c", *"abcdefghijklmnopq"]).values()
    assert value.startswith("web_search, a\\r\\nb: c, a, ") and value.endswith(", and 3 more")
    assert value.isprintable()

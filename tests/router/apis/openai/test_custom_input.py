"""A custom tool's input is read out of arguments that are cut anywhere."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from signalbox_router.apis.openai.custom_input import CustomInput


def read(arguments: str, length: int) -> str:
    reader = CustomInput()
    pieces = [arguments[i : i + length] for i in range(0, len(arguments), length)]
    return "".join([*map(reader.push, pieces), reader.flush()])


@given(st.text(), st.booleans(), st.integers(1, 13))
@example('\\" \U0001f600 \n\t\u2028', True, 1)
def test_pieces_make_the_text_that_was_written(text: str, escapes: bool, length: int) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=escapes)
    assert read(arguments, length) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ('{"text": 1, "input": "x"}', "x"),
        ('{"text": 1}', '{"text": 1}'),
        ("", ""),
        ('{"input": "a line\nbreak"}', "a line\nbreak"),
        ('{"input": "C:\\dir and more text"}', "C:\\dir and more text"),
        ('{"input": "cut off', "cut off"),
        ('{"input": "cut \\ud83d', "cut "),
        ('{"input": "C:\\d"}', "C:\\d"),
        ('{"input": "half \\ud83d"}', "half \\ud83d"),
        ('{"input": "cut \\ud83d\\ud', "cut "),
        ('{"input": "half \\ud83d and more text"}', "half \\ud83d and more text"),
    ],
)
def test_what_is_no_such_object_is_the_input_as_far_as_it_can_be_read(
    arguments: str, text: str
) -> None:
    assert {read(arguments, length) for length in (1, 2, 5, 99)} == {text}

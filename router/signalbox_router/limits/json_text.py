"""Parses JSON that clients send as text in a message, such as the schema of a tool's arguments."""

import json
import re
from typing import Any

from pydantic_core import from_json

from signalbox_router.limits.json_scan import measure

MAX_DEPTH = 512
"""Levels of nesting: code that walks through a value takes a frame of Python's stack for each."""
MAX_VALUES = 1 << 18
"""JSON values in one text: parsing that many blocks the event loop for some 20 ms."""
_SHORT = 32 << 10
_HIGH, _LOW = r"\\u[dD][89abAB][0-9a-fA-F]{2}", r"\\u[dD][c-fC-F][0-9a-fA-F]{2}"
_ESCAPES = re.compile(
    rf"{_HIGH}(?:{_LOW}|(?:\\(?:u[0-9a-fA-F]{{0,3}})?)?\Z)|({_HIGH}|{_LOW})|\\.", re.DOTALL
)
"""Escapes of JSON; the group is half of a character without the other half."""


class TooMuchJson(ValueError):
    """The text has more values, or deeper nesting, than allowed."""

    def __init__(self, found: str, allowed: str) -> None:
        super().__init__(f"{found}; {allowed}")
        self.found = found
        self.allowed = allowed


def parsed(text: str) -> Any:
    """Returns the value. Raises TooMuchJson, or ValueError for invalid JSON."""
    if len(text) > _SHORT or text.count("[") + text.count("{") > MAX_DEPTH:
        _check(text.encode())
    return json.loads(_with_whole_chars(text))


def partly_parsed(text: str) -> Any:
    """Returns what is there of a value whose text was cut, with texts that have begun; None if the
    text is not the beginning of a value."""
    try:
        return from_json(_with_whole_chars(text), allow_partial="trailing-strings")
    except ValueError:
        return None


def _with_whole_chars(text: str) -> str:
    """Returns a text with U+FFFD for each half of a character, which models write and UTF-8 cannot
    hold."""
    if "\\u" not in text:
        return text
    return _ESCAPES.sub(lambda found: r"\ufffd" if found[1] else found[0], text)


def _check(text: bytes) -> None:
    num_values, depth = measure(text)
    if depth > MAX_DEPTH:
        raise TooMuchJson(f"{depth} levels", f"at most {MAX_DEPTH} levels of nesting")
    if num_values > MAX_VALUES:
        raise TooMuchJson(f"{num_values} values", f"at most {MAX_VALUES} values")

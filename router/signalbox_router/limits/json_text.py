"""Parses JSON that clients send as text in a message, such as the schema of a tool's arguments."""

import json
from typing import Any

from pydantic_core import from_json

from signalbox_router.limits.json_scan import measure

MAX_DEPTH = 512
"""Levels of nesting: code that walks through a value takes a frame of Python's stack for each."""
MAX_VALUES = 1 << 18
"""JSON values in one text: parsing that many blocks the event loop for some 20 ms."""
_SHORT = 32 << 10


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
    return json.loads(text)


def partly_parsed(text: str) -> Any:
    """Returns what is there of a value whose text was cut, with texts that have begun; None if the
    text is not the beginning of a value."""
    try:
        return from_json(text, allow_partial="trailing-strings")
    except ValueError:
        return None


def _check(text: bytes) -> None:
    num_values, depth = measure(text)
    if depth > MAX_DEPTH:
        raise TooMuchJson(f"{depth} levels", f"at most {MAX_DEPTH} levels of nesting")
    if num_values > MAX_VALUES:
        raise TooMuchJson(f"{num_values} values", f"at most {MAX_VALUES} values")

"""Reads characters of a text that arrives in pieces, and the JSON values that they form.

Each reader is a generator that is sent one character at a time. Characters that were read and not
yet interpreted are held, so that they can be output as text.
"""

import json
from collections.abc import Callable, Generator

SPACE = " \t\r\n"

Reader = Generator[None, str, None]
TextReader = Generator[None, str, str]


class Mismatch(Exception):
    """The held text does not match the expected form; its last character may begin another one."""


class CharReader:
    """The reading position in one sequence's text."""

    def __init__(self) -> None:
        self.held: list[str] = []
        """Characters that were read and not yet interpreted."""
        self._pushed_back = ""

    @property
    def is_fresh(self) -> bool:
        """True if the next character has not been read before."""
        return not self._pushed_back

    def next(self) -> TextReader:
        if self._pushed_back:
            char, self._pushed_back = self._pushed_back[0], self._pushed_back[1:]
        else:
            char = yield
        self.held.append(char)
        return char

    def next_but(self, skipped: str) -> TextReader:
        while (char := (yield from self.next())) in skipped:
            pass
        return char

    def push_back(self, num_chars: int = 1) -> None:
        self._pushed_back = "".join(self.held[-num_chars:]) + self._pushed_back
        del self.held[-num_chars:]

    def string(self) -> TextReader:
        """Reads a string, after its opening quote."""
        chars = ['"']
        is_escaped = False
        while True:
            char = yield from self.next()
            chars.append(char)
            if char == '"' and not is_escaped:
                break
            is_escaped = char == "\\" and not is_escaped
        try:
            text = str(json.loads("".join(chars), strict=False))
        except ValueError:
            raise Mismatch from None
        return text.encode(errors="replace").decode()  # an escape may be half a surrogate pair

    def word(self, char: str) -> TextReader:
        """Reads a number or a name, which begins with `char`."""
        word = ""
        while char not in SPACE + ",}]":
            word += char
            char = yield from self.next()
        self.push_back()
        return word

    def container(self, char: str, keep: Callable[[str], None]) -> Reader:
        """Reads an object or a list, after its opening character, counting brackets only."""
        keep(char)
        depth, is_quoted, is_escaped = 1, False, False
        while depth:
            char = yield from self.next()
            keep(char)
            if is_quoted:
                is_quoted = char != '"' or is_escaped
                is_escaped = char == "\\" and not is_escaped
            elif char == '"':
                is_quoted = True
            else:
                depth += (char in "{[") - (char in "}]")


def json_object(text: str) -> str:
    """Returns an object as JSON. Raises Mismatch for any other text."""
    for is_strict in (True, False):  # models write line breaks into strings
        try:
            value = json.loads(text, parse_constant=no_constant, strict=is_strict)
        except (ValueError, RecursionError):
            continue
        if not isinstance(value, dict):
            raise Mismatch
        return text if is_strict else json.dumps(value, ensure_ascii=False)
    raise Mismatch


def no_constant(constant: str) -> None:
    """Raises ValueError for NaN and infinities, which Python's reader takes for JSON."""
    raise ValueError(f"{constant} is no JSON")

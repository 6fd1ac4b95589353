"""Values as Python writes them, as models do whose templates leave values to Python."""

import json
import re
from collections.abc import Iterator
from itertools import pairwise

CONSTANTS = {"True": "true", "False": "false", "None": "null"}
_STRING = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*')""", re.DOTALL)
_TOKEN = re.compile(
    rf"""\s+|{_STRING.pattern}|["'].*|-?\d(?:[\w.]|(?<=[eE])[+-])*|[^\W\d]\w*|.""", re.DOTALL
)
"""A quote that opens no string goes with all after it, which is then read once."""
_ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_ESCAPED = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", "\n": ""}


def json_of_python(text: str) -> str:
    """Returns the JSON of a value, or of named arguments without the brackets around them.

    What is none of Python's, nor of JSON's, gives no JSON.
    """
    return "".join(_as_json(text))


def _as_json(text: str) -> Iterator[str]:
    tokens = [one for one in _TOKEN.findall(text) if not one.isspace()]
    depth = 0
    for token, following in pairwise([*_with_sets_as_lists(tokens), ")"]):
        depth += (token in "([{") - (token in ")]}")
        if _STRING.fullmatch(token):
            yield json.dumps(text_of_string(token), ensure_ascii=False)
        elif depth == 0 and following == "=" and token.isidentifier():
            yield json.dumps(token)
        elif token == "=" and depth == 0:
            yield ":"
        elif token in "()":
            yield "[" if token == "(" else "]"
        elif token != "," or following not in ")]}":
            yield CONSTANTS.get(token, _without_zeros(token))


def _without_zeros(token: str) -> str:
    """Returns a whole number as JSON has it, without zeros before it."""
    digits = token.removeprefix("-")
    sign = token[: len(token) - len(digits)]
    return sign + (digits.lstrip("0") or "0") if digits.isdecimal() else token


def _with_sets_as_lists(tokens: list[str]) -> list[str]:
    opened, found = list[int](), list(tokens)
    for i, token in enumerate(tokens):
        if token == "{":
            opened.append(i)
        elif token == ":" and opened:
            opened[-1] = -1  # what a colon is in is no set
        elif token == "}" and opened and (begin := opened.pop()) not in (-1, i - 1):
            found[begin], found[i] = "[", "]"
    return found


def text_of_string(string: str) -> str:
    """Returns the text of a string, which has one quote at each end or three."""
    quotes = string[0] * 3
    is_long = len(string) >= 6 and string.startswith(quotes) and string.endswith(quotes)
    body = string[3:-3] if is_long else string[1:-1]

    def unescaped(found: re.Match[str]) -> str:
        code = found[1] or found[2] or found[3]
        if code:
            return chr(min(int(code, 16), 0x10FFFF))
        return _ESCAPED.get(found[4], found[4] if found[4] in "\\'\"/" else found[0])

    text = _ESCAPE.sub(unescaped, body)
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")

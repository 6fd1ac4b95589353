"""Writes regular expressions in the dialect of llguidance, which is Rust's."""

import re

from signalbox_contract.structured_output.schema.vocabulary import SchemaError

_PARTS = re.compile(
    r"\[(?:\\s\\S|\\S\\s|\\d\\D|\\D\\d|\\w\\W|\\W\\w)\]|\\.|\[\^?\]?|\]|&&|~~|.", re.DOTALL
)
_SPACES = r"\t-\r \x{a0}\x{1680}\x{2000}-\x{200a}\x{2028}\x{2029}\x{202f}\x{205f}\x{3000}"
_ALL_SPACES = rf"{_SPACES}\x{{1c}}-\x{{1f}}\x{{85}}\x{{feff}}"
_NARROW = {
    r"\s": f"[{_SPACES}]", r"\S": f"[^{_ALL_SPACES}]", r"\D": r"[^\p{Nd}]",
    r"\W": r"[^\p{L}\p{N}_]",
}  # fmt: skip
"""Classes of the characters that are in them both in ECMA's dialect, which JSON Schema prescribes,
and in Python's. `\\d` and `\\w` are those of ASCII."""
_WIDE = {
    r"\s": f"[{_ALL_SPACES}]", r"\S": f"[^{_SPACES}]", r"\d": r"\p{Nd}", r"\D": "[^0-9]",
    r"\w": r"[\p{L}\p{N}_]", r"\W": "[^0-9A-Za-z_]",
}  # fmt: skip
"""Classes of the characters that are in them in one of the dialects, to be excluded."""


def plain_pattern(pattern: str) -> str:
    """Returns a pattern that matches no more than in JSON Schema's dialect and in Python's.

    In Rust, "[" within a class opens another; in JSON Schema it is a character.
    """
    classes, is_in_class = _NARROW, False
    result: list[str] = []
    begin, begin_in_result = 0, 0
    for match in _PARTS.finditer(pattern):
        text, was_in_class = match.group(), is_in_class
        if text.startswith("\\"):
            text = classes.get(text, text)
        elif text.startswith("[\\"):  # any character
            text = "(?s:.)"
        elif not is_in_class and text.startswith("["):
            is_in_class, classes = True, _WIDE if text.startswith("[^") else _NARROW
            begin, begin_in_result = match.start(), len(result)
            if text.endswith("]"):  # a bracket that is the first of its class
                text = text[:-1] + r"\]"
        elif is_in_class and text.startswith("["):
            text = r"\[" + text[1:]
            is_in_class = not text.endswith("]")
        elif is_in_class and text in ("&&", "~~"):
            text = rf"{text[0]}\{text[1]}"
        elif text == "]":
            is_in_class = False
        result.append(text)
        if was_in_class and not is_in_class:
            classes = _NARROW
            if _confuses_escapes(pattern[begin : match.end()]):
                result[begin_in_result:] = ["[", *result[begin_in_result:], r"&&[^\x00-\x1f]]"]
    return "".join(result)


def _confuses_escapes(characters: str) -> bool:
    """Returns whether llguidance, in JSON, would admit quotes and backslashes in a class without.

    It does so where the class has the control characters that have escapes of one letter.
    """
    try:
        one = re.compile(characters)
    except re.error:
        return True
    return any(map(one.match, "\b\f\n\r\t")) and not (one.match('"') and one.match("\\"))


def pattern_of_others(words: list[str]) -> str:
    """Returns a regular expression of all strings but these."""
    return f"^(?:{_others(sorted(set(words)))})$"


def _others(words: list[str]) -> str:
    """Returns a regular expression of all strings but these, which are sorted."""
    if not any(words):  # the empty string alone, or none
        return r"[\s\S]+" if words else r"[\s\S]*"
    first: dict[str, list[str]] = {}
    for word in words:
        if word:
            first.setdefault(word[0], []).append(word[1:])
    if len(first) > 10_000:
        raise SchemaError("too many values are negated")
    ways = [] if "" in words else [""]
    ways.append(f"[^{''.join(map(_char, first))}]" + r"[\s\S]*")
    ways += [_char(char) + f"(?:{_others(rest)})" for char, rest in first.items()]
    return "|".join(ways)


def _char(char: str) -> str:
    return rf"\U{ord(char):08x}"

"""Writes regular expressions in the dialect of llguidance, which is Rust's."""

import re

from contract.structured_output.schema.vocabulary import SchemaError

_IN_CLASS = re.compile(r"\\.|\[\^?\]?|\]|&&|~~|.", re.DOTALL)


def plain_pattern(pattern: str) -> str:
    """Returns a pattern whose classes of characters have no classes and operators within them.

    In Rust, "[" within a class opens another; in JSON Schema it is a character.
    """
    is_in_class = False
    result = []
    for match in _IN_CLASS.finditer(pattern):
        text = match.group()
        if not is_in_class:
            is_in_class = text.startswith("[")
            if text.endswith("]") and len(text) > 1:  # a bracket that is the first of its class
                text = text[:-1] + r"\]"
        elif text.startswith("["):
            text = r"\[" + text[1:]
            is_in_class = not text.endswith("]")
        elif text == "]":
            is_in_class = False
        elif text in ("&&", "~~"):
            text = rf"{text[0]}\{text[1]}"
        result.append(text)
    return "".join(result)


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
    return rf"\x{{{ord(char):x}}}"

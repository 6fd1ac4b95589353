"""Regular expressions mean the same in each version of Python that Signalbox runs on."""

import re

from tests.test_imports import FOLDERS, ROOT

POSSESSIVE_GROUP = re.compile(r"(?<!\\)\)(?:[*+?]|\{\d*,?\d*\})\+")


def test_no_group_is_repeated_possessively() -> None:
    """CPython before 3.11.5 matches all of "abca" with (?:ab?c)*+: not only the "abc"."""
    assert POSSESSIVE_GROUP.search("(?:ab?c)*+")
    assert POSSESSIVE_GROUP.search("(?:a|b){0,200}+")
    assert not POSSESSIVE_GROUP.search(r"(?:a++|\)*+)*")
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for folder in FOLDERS.values()
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if POSSESSIVE_GROUP.search(line)
    ]
    assert not found

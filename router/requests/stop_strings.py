"""Finds stop strings in text that arrives in pieces of any size.

Each stop string is matched by the automaton of Knuth, Morris and Pratt: constant work per
character, nothing is searched twice. The string that is complete first wins; of several that are
complete at the same character, the longest. Text that may begin a stop string is held back.
"""

from collections.abc import Sequence
from typing import NamedTuple


class Pattern(NamedTuple):
    """A stop string and, for each length of a partial match, the next shorter partial match."""

    text: str
    fallback: tuple[int, ...]


def compile_patterns(stops: Sequence[str]) -> tuple[Pattern, ...]:
    """Returns prepared stop strings, none of them empty; any number of sequences may share them."""
    return tuple(Pattern(stop, _failure_function(stop)) for stop in dict.fromkeys(stops))


class Scan(NamedTuple):
    """Result of scanning a piece of text."""

    text: str
    """Text that may be sent, because no stop string can begin in it."""
    stop: str | None
    """The stop string that was found; the text ends before it."""


class StopStringScanner:
    """The matching state of one sequence."""

    __slots__ = ("_held", "_matched", "_patterns")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._patterns = patterns
        self._matched = [0] * len(patterns)
        self._held = ""

    def push(self, text: str, *, armed: bool = True) -> Scan:
        """Scans more text. A stop string that ends while not armed does not count."""
        buffer = self._held + text
        start = len(self._held)
        for position, char in enumerate(text, start=start + 1):
            stop = self._step(char)
            if stop is not None and armed:
                self._held = ""
                return Scan(buffer[: position - len(stop)], stop)
        sent = len(buffer) - max(self._matched, default=0)
        self._held = buffer[sent:]
        return Scan(buffer[:sent], None)

    def flush(self) -> str:
        """Returns the held text, at the end of the sequence."""
        held, self._held = self._held, ""
        return held

    def _step(self, char: str) -> str | None:
        """Advances every pattern; returns the longest that is complete."""
        found: str | None = None
        for i, (pattern, fallback) in enumerate(self._patterns):
            matched = self._matched[i]
            while matched and pattern[matched] != char:
                matched = fallback[matched]
            if pattern[matched] == char:
                matched += 1
            if matched == len(pattern):
                matched = fallback[matched]
                if found is None or len(pattern) > len(found):
                    found = pattern
            self._matched[i] = matched
        return found


def _failure_function(pattern: str) -> tuple[int, ...]:
    """Returns, for each length, the longest proper prefix that is also a suffix."""
    fallback = [0, 0]
    for char in pattern[1:]:
        length = fallback[-1]
        while length and pattern[length] != char:
            length = fallback[length]
        fallback.append(length + 1 if pattern[length] == char else 0)
    return tuple(fallback)

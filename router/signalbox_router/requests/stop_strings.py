"""Finds stop strings in text that arrives in pieces of any size.

Each stop string is matched by the automaton of Knuth, Morris and Pratt: constant work per
character, nothing is searched twice. The string that is complete first wins; of several that are
complete at the same character, the longest. Text that may begin a stop string is held back.

The spellings of special tokens that the client does not see are hidden text. A stop string that
holds one of them is matched as if they were shown; the others skip hidden text.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import NamedTuple


class Pattern(NamedTuple):
    """A stop string and, for each length of a partial match, the next shorter partial match."""

    text: str
    fallback: tuple[int, ...]
    reads_hidden: bool
    """False if the string skips hidden text."""


def compile_patterns(
    stops: Sequence[str], hidden_tokens: Collection[str] = ()
) -> tuple[Pattern, ...]:
    """Returns prepared stop strings, none of them empty; any number of sequences may share them.

    Args:
        hidden_tokens: spellings of the special tokens that the client does not see.
    """
    return tuple(
        Pattern(stop, _failure_function(stop), any(token in stop for token in hidden_tokens))
        for stop in dict.fromkeys(stops)
    )


class Scan(NamedTuple):
    """Result of scanning a piece of text."""

    text: str
    """Text that may be sent, because no stop string can begin in it."""
    stop: str | None
    """The stop string that was found; the text ends before it."""


class StopStringScanner:
    """The matching state of one sequence."""

    __slots__ = ("_held", "_matched", "_numbered", "_readers_of_hidden", "_visible")

    def __init__(self, patterns: Sequence[Pattern]) -> None:
        self._numbered = [*enumerate(patterns)]
        self._readers_of_hidden = [one for one in self._numbered if one[1].reads_hidden]
        self._matched = [0] * len(patterns)
        self._held = ""
        self._visible = b""
        """Marks each held character: 0 if it is hidden, else 1; empty if none is hidden."""

    def push(self, text: str, *, armed: bool = True, hidden: bool = False) -> Scan:
        """Scans more text. A stop string that ends while not armed does not count."""
        start = len(self._held)
        self._held += text
        if hidden or self._visible:
            visible = self._visible or b"\1" * start
            self._visible = visible + (b"\0" if hidden else b"\1") * len(text)
        patterns = self._readers_of_hidden if hidden else self._numbered
        for position, char in enumerate(text, start=start + 1):
            stop = self._step(char, patterns)
            if stop is not None and armed:
                sent = self._release(self._begin_of(stop, len(stop.text), position))
                self._held, self._visible = "", b""
                return Scan(sent, stop.text)
        return Scan(self._release(self._begin_of_held()), None)

    def flush(self) -> str:
        """Returns the held text, at the end of the sequence."""
        return self._release(len(self._held))

    def _step(self, char: str, patterns: Iterable[tuple[int, Pattern]]) -> Pattern | None:
        """Advances some patterns, by their places; returns the longest that is complete."""
        found: Pattern | None = None
        for i, pattern in patterns:
            text, fallback, _ = pattern
            matched = self._matched[i]
            while matched and text[matched] != char:
                matched = fallback[matched]
            if text[matched] == char:
                matched += 1
            if matched == len(text):
                matched = fallback[matched]
                if found is None or len(text) > len(found.text):
                    found = pattern
            self._matched[i] = matched
        return found

    def _begin_of_held(self) -> int:
        """Returns the place before which no stop string can begin."""
        end = len(self._held)
        if not self._visible:
            return end - max(self._matched, default=0)
        begins = (self._begin_of(one, self._matched[i], end) for i, one in self._numbered)
        return min(begins, default=end)

    def _begin_of(self, pattern: Pattern, length: int, end: int) -> int:
        """Returns where the last `length` characters before `end` that the pattern reads begin."""
        begin = end - length
        if self._visible and not pattern.reads_hidden:
            begin = end
            while length:
                begin -= 1
                length -= self._visible[begin]
        return begin

    def _release(self, end: int) -> str:
        """Returns the visible text before `end`, and holds only the rest."""
        text, self._held = self._held[:end], self._held[end:]
        if self._visible:
            text = "".join(compress(text, self._visible))
            self._visible = self._visible[end:] if 0 in self._visible[end:] else b""
        return text


def _failure_function(pattern: str) -> tuple[int, ...]:
    """Returns, for each length, the longest proper prefix that is also a suffix."""
    fallback = [0, 0]
    for char in pattern[1:]:
        length = fallback[-1]
        while length and pattern[length] != char:
            length = fallback[length]
        fallback.append(length + 1 if pattern[length] == char else 0)
    return tuple(fallback)

"""Finds stop strings in text that arrives in pieces of any size.

Each stop string is matched by the automaton of Knuth, Morris and Pratt: constant work per
character, nothing is searched twice. The string that is complete first wins; of several that are
complete at the same character, the longest. Text that may begin a stop string is held back.

The spellings of special tokens that the client does not see are hidden text. A stop string that
holds one of them is matched as if they were shown; the others skip hidden text. All of them skip
the MARK before a token that a reader looks for.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import compress
from typing import NamedTuple

from signalbox_router.prompt.tokenization.detokenizer import MARK

_HIDDEN, _SHOWN, _SKIPPED = 0, 1, 2
"""Kinds of characters; the last one is shown, and no stop string reads it."""


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
        """Kind of each held character; empty if all are simply shown."""

    def push(self, text: str, *, armed: bool = True, hidden: bool = False) -> Scan:
        """Scans more text. A stop string that ends while not armed does not count."""
        start = len(self._held)
        self._held += text
        if hidden or self._visible or MARK in text:
            visible = self._visible or bytes([_SHOWN]) * start
            kind = _HIDDEN if hidden else _SHOWN
            self._visible = visible + bytes(_SKIPPED if c == MARK else kind for c in text)
        patterns = self._readers_of_hidden if hidden else self._numbered
        for position, char in enumerate(text, start=start + 1):
            stop = self._step(char, patterns) if char != MARK else None
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
        if self._visible:
            begin = end
            while length:
                begin -= 1
                kind = self._visible[begin]
                length -= kind == _SHOWN or (kind == _HIDDEN and pattern.reads_hidden)
        return begin

    def _release(self, end: int) -> str:
        """Returns the visible text before `end`, and holds only the rest."""
        text, self._held = self._held[:end], self._held[end:]
        if self._visible:
            text = "".join(compress(text, self._visible))
            rest = self._visible[end:]
            self._visible = rest if rest.strip(bytes([_SHOWN])) else b""
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

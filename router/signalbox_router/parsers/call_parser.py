"""Extracts tool calls from text that arrives in pieces of any size.

A parser reads character by character and decides only by the text read so far, so that a text gives
the same calls however it is split. It looks for an opening marker; what follows is read as calls by
the parser of the format, which raises Mismatch where the text does not match, and then it is text.
A call is output when its arguments form a complete JSON object: until then it may not be a call,
and be output as text. If a grammar guarantees the calls, their arguments are streamed.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from functools import cache

from signalbox_router.parsers.char_reader import (
    SPACE,
    CharReader,
    Mismatch,
    Reader,
    TextReader,
    json_object,
)
from signalbox_router.parsers.parser_output import MARK, Output, Parsed
from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.prompt.chat.conversation import MAX_NAME_CHARS as MAX_NAME_CHARS
from signalbox_router.prompt.chat.conversation import Tool

MARKER = re.compile(r"<[^<>\s]+>")
"""A marker as most formats spell theirs."""


def parts_of(text: str) -> list[str]:
    """Returns the markers and the words of a text."""
    return MARKER.sub(lambda found: f" {found[0]} ", text).split()


class _Ended(Exception):
    """The text has ended."""


@cache
def _beginnings(openings: tuple[str, ...]) -> tuple[frozenset[str], re.Pattern[str]]:
    """Returns all texts that begin openings, and what matches an opening, or the beginning of one
    at the end of a text."""
    begun = frozenset(one[:n] for one in openings for n in range(1, len(one) + 1))
    ends = (re.escape(one) + r"\Z" * (one not in openings) for one in begun)
    return begun, re.compile("|".join(sorted(ends)))


class CallParser(ABC):
    """Parses the calls of one sequence."""

    def __init__(
        self,
        format_: ToolCallFormat,
        tools: Sequence[Tool],
        *,
        openings: Sequence[str] | None = None,
        is_certain: bool = False,
        max_calls: int | None = None,
        marked: frozenset[str] = frozenset(),
    ) -> None:
        """Makes a parser; `ToolCallFormat.parser` describes the arguments.

        Args:
            openings: texts that open calls; None are the format's.
        """
        self.num_calls = 0
        self._is_certain = is_certain
        self._tools = {tool.name: tool for tool in tools}
        self._make_id = format_.make_id
        self._max_calls = max_calls
        self._marked = marked
        self._openings = {
            self._marker(one): one for one in (format_.opening if openings is None else openings)
        }
        self._begun, self._opening = _beginnings(tuple(self._openings))
        self._out = Output()
        self._chars = CharReader()
        self._is_plain = False
        """True while only a text that may open a call matters."""
        self._is_sure = False
        """True if a call has begun since the opening."""
        self._is_in_call = False
        """True if the held text belongs to what is not yet a call."""
        self._reader = self._read()
        next(self._reader)

    @abstractmethod
    def _calls(self, opening: str) -> Reader:
        """Reads the calls after an opening, which is held until `_begin` or `_accept`.

        Raises Mismatch for text that does not match; its last character is read again as text.
        """

    def push(self, text: str) -> Parsed:
        if self._is_plain:
            opening = self._opening.search(text)
            plain = text if opening is None else text[: opening.start()]
            self._out.say(plain)
            text = text[len(plain) :]
        for char in text:
            self._reader.send(char)
        return self._out.pop()

    def flush(self) -> Parsed:
        with suppress(_Ended):
            self._reader.throw(_Ended())
        if self._is_in_call or not self._is_sure:
            self._out.say("".join(self._chars.held))
        if not self.num_calls:
            self._out.say_space()
        return self._out.pop()

    def _marker(self, text: str) -> str:
        """Returns a marker as it is in the text: with a MARK before what is a token."""
        if text not in self._marked:
            for token in self._marked:
                text = text.replace(token, MARK + token)
            return text
        return MARK + text

    def _literal(self, text: str, char: str | None = None) -> Reader:
        """Reads a marker; `char` is its first character if that has been read."""
        for expected in self._marker(text):
            if char is None:
                char = yield from self._chars.next()
            if char != expected:
                raise Mismatch
            char = None

    def _one_of(self, *texts: str) -> TextReader:
        """Reads one of several tags after white space, and returns it."""
        tags = {self._marker(text): text for text in texts}
        read = yield from self._next_but_space()
        while read not in tags:
            if not any(tag.startswith(read) for tag in tags):
                raise Mismatch
            read += yield from self._chars.next()
        return tags[read]

    def _until(self, *ends: str) -> TextReader:
        """Reads a text and the marker after it, which may be any of `ends`.

        Returns both, the marker without MARKs; the text may not have an end in it.
        """
        text = ""
        marked = {self._marker(one): one for one in ends}
        while not (found := next(filter(text.endswith, marked), "")):
            text += yield from self._chars.next()
        return text.removesuffix(found) + marked[found]

    def _accept(self) -> None:
        """Takes the held text as part of a call, so that it is no text whatever follows."""
        self._chars.held.clear()
        self._is_in_call = False

    def _checked_name(self, name: str, *, is_known: bool = False) -> str:
        """Returns the name of a call. Raises Mismatch for one that no tool can have.

        Args:
            is_known: True refuses that of an unknown tool too.
        """
        if is_known and name not in self._tools:
            raise Mismatch
        if not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise Mismatch
        return name

    def _begin(self, name: str, arguments: str = "", *, call_id: str = "") -> None:
        """Outputs a call, with its arguments or those that `_out.add_arguments` will add."""
        self._is_sure = True
        self._accept()  # what is held has been output, wherever the text ends
        index = self.num_calls
        self.num_calls += 1
        is_wanted = self._max_calls is None or index < self._max_calls
        self._out.begin(index, call_id or self._make_id(), name, is_wanted=is_wanted)
        self._out.add_arguments(arguments)

    def _json_call(self, name: str, *, call_id: str = "") -> Reader:
        """Reads the arguments of a call as a JSON object, and outputs the call."""
        char = yield from self._next_but_space()
        if char != "{":
            raise Mismatch
        if self._is_certain:
            self._begin(name, call_id=call_id)
            yield from self._chars.container(char, self._out.add_arguments)
        else:
            arguments = list[str]()
            yield from self._chars.container(char, arguments.append)
            self._begin(name, json_object("".join(arguments)), call_id=call_id)
        self._accept()

    def _read(self) -> Reader:
        while True:
            opening = yield from self._plain_text()
            try:
                yield from self._calls(opening)
            except Mismatch:
                self._chars.push_back()
            self._out.say("".join(self._chars.held))
            self._chars.held.clear()
            self._is_sure = self._is_in_call = False

    def _plain_text(self) -> TextReader:
        """Reads until an opening is complete, holds and returns it."""
        while True:
            self._is_plain = not self._chars.held and self._chars.is_fresh
            yield from self._chars.next()
            self._is_plain = False
            held = "".join(self._chars.held)
            begun = held
            while begun and begun not in self._begun:
                begun = begun[1:]
            num_said = len(held) - len(begun)
            self._out.say(held[:num_said])
            del self._chars.held[:num_said]
            if begun in self._openings:
                return self._openings[begun]

    def _next_but_space(self) -> TextReader:
        return (yield from self._chars.next_but(SPACE))

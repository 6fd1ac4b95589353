"""Extracts tool calls from text that arrives in pieces of any size.

The parser reads character by character and decides only by the text read so far, so that a text
gives the same calls however it is split. `CharReader` holds the characters, and a `ToolCallFormat`
describes the markup around calls of a model family. A call is output when its arguments form a
complete JSON object: until then it may not be a call, and be output as text. If a grammar
guarantees the calls, their arguments are streamed.
"""

import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass

from signalbox_router.parsers.char_reader import (
    SPACE,
    CharReader,
    Mismatch,
    Reader,
    TextReader,
    json_object,
)
from signalbox_router.parsers.parser_output import Output, Parsed
from signalbox_router.parsers.tool_call_formats import ARGUMENTS_MARKER, ToolCallFormat

MAX_NAME_CHARS = 64
_FENCE = "```"
_BARE_OPENINGS = "{[`"
_MAX_LANGUAGE_CHARS = 20


class _Ended(Exception):
    """The text has ended."""


@dataclass(slots=True)
class _Call:
    """A call that is being read."""

    name: str | None = None
    arguments: str | None = None
    """The arguments, complete but not sent yet."""
    has_begun: bool = False


class ToolCallParser:
    """Parses the calls of one format."""

    def __init__(
        self,
        format_: ToolCallFormat,
        *,
        tool_names: Iterable[str],
        max_calls: int | None = None,
        is_certain: bool = False,
    ) -> None:
        """Makes a parser that drops calls beyond `max_calls`.

        Args:
            is_certain: True if a grammar guarantees well-formed calls; their arguments stream.
        """
        self.num_calls = 0
        self._is_certain = is_certain
        openings = format_.start[:1] + _BARE_OPENINGS * format_.is_bare
        self._opening = re.compile(f"[{re.escape(openings)}]")
        self._format = format_
        self._tool_names = frozenset(tool_names)
        self._max_calls = max_calls
        self._out = Output()
        self._chars = CharReader()
        self._is_plain = False
        """True while only a character that may open a call matters."""
        self._is_sure = False
        """True if a call has begun since the marker."""
        self._is_in_object = False
        """True if the held text belongs to a JSON object that is not yet a call."""
        self._wants_known_name = False
        self._reader = self._read()
        next(self._reader)

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
        if self._is_in_object or not self._is_sure:
            self._out.say("".join(self._chars.held))
        if not self.num_calls:
            self._out.say_space()
        return self._out.pop()

    def _read(self) -> Reader:
        while True:
            opening = yield from self._plain_text()
            self._wants_known_name = bool(opening)
            yield from self._attempt(self._bare_calls(opening) if opening else self._marked_calls())

    def _attempt(self, calls: Reader) -> Reader:
        """Reads calls; text that does not match is output up to the first character that may
        open a call."""
        try:
            yield from calls
        except Mismatch:
            self._chars.push_back()
        self._out.say("".join(self._chars.held))
        self._chars.held.clear()
        self._is_sure = self._is_in_object = False

    def _plain_text(self) -> TextReader:
        """Reads until the start marker is complete, and holds it.

        Returns the character that opens a call without a marker, if the format has such calls, or
        "".
        """
        marker, num_matched = self._format.start, 0
        while not marker or num_matched < len(marker):
            self._is_plain = not num_matched and self._chars.is_fresh
            char = yield from self._chars.next()
            self._is_plain = False
            if marker and char == marker[num_matched]:
                num_matched += 1
                continue
            num_matched = int(char == marker[:1])  # this character occurs only once in the marker
            is_opening = self._format.is_bare and char in _BARE_OPENINGS and not num_matched
            num_said = len(self._chars.held) - num_matched - is_opening
            self._out.say("".join(self._chars.held[:num_said]))
            del self._chars.held[:num_said]
            if is_opening:
                return char
        return ""

    def _bare_calls(self, char: str) -> Reader:
        """Reads JSON calls of known tools, inside a code fence or without."""
        is_fenced = char == _FENCE[0]
        if is_fenced:
            yield from self._fence(char)
            language = ""
            while (char := (yield from self._chars.next())) not in SPACE + "{[":
                language += char
                if len(language) > _MAX_LANGUAGE_CHARS:
                    raise Mismatch
            if char in SPACE:
                char = yield from self._chars.next_but(SPACE)
        yield from self._json_calls(char)
        if is_fenced:
            yield from self._fence((yield from self._chars.next_but(SPACE)))
            self._chars.held.clear()

    def _fence(self, char: str) -> Reader:
        for expected in _FENCE[:-1]:
            if char != expected:
                raise Mismatch
            char = yield from self._chars.next()
        if char != _FENCE[-1]:
            raise Mismatch

    def _marked_calls(self) -> Reader:
        char = yield from self._chars.next_but(SPACE)
        if self._format.is_named and char not in "[{":
            yield from self._named_call(char)
        else:
            yield from self._json_calls(char)
        if self._format.end:
            yield from self._end_marker()

    def _json_calls(self, char: str) -> Reader:
        if char == "[":
            yield from self._list()
            return
        while char == "{":
            yield from self._object()
            char = yield from self._chars.next_but(SPACE + self._format.separators)
        if not self._is_sure:
            raise Mismatch
        self._chars.push_back()

    def _list(self) -> Reader:
        while (char := (yield from self._chars.next_but(SPACE + ","))) == "{":
            yield from self._object()
        if char != "]" or not self._is_sure:
            raise Mismatch
        self._chars.held.clear()

    def _named_call(self, name: str) -> Reader:
        while (char := (yield from self._chars.next())) != "{":
            name += char
            if len(name) > MAX_NAME_CHARS + len(ARGUMENTS_MARKER):
                raise Mismatch
        name = name.rstrip().removesuffix(ARGUMENTS_MARKER).rstrip()
        if name not in self._tool_names:
            raise Mismatch
        call = _Call(name)
        self._is_in_object = True
        yield from self._arguments(call, char)
        if not call.has_begun:
            self._begin(call, json_object(call.arguments or ""))
        self._is_in_object = False

    def _end_marker(self) -> Reader:
        char = yield from self._chars.next_but(SPACE)
        for expected in self._format.end[:-1]:
            if char != expected:
                raise Mismatch
            char = yield from self._chars.next()
        if char != self._format.end[-1]:
            raise Mismatch
        self._chars.held.clear()

    def _object(self) -> Reader:
        """Reads one call, after its opening brace."""
        self._is_in_object = True
        call = _Call()
        while (char := (yield from self._chars.next_but(SPACE + ","))) == '"':
            key = yield from self._chars.string()
            if (yield from self._chars.next_but(SPACE)) != ":":
                raise Mismatch
            char = yield from self._chars.next_but(SPACE)
            yield from self._value(call, key, char)
        if char != "}" or call.name is None:
            raise Mismatch
        if not call.has_begun:
            self._begin(call, json_object("{}" if call.arguments is None else call.arguments))
        self._chars.held.clear()
        self._is_in_object = False

    def _value(self, call: _Call, key: str, char: str) -> Reader:
        if key == "name" and call.name is None:
            if char != '"':
                raise Mismatch
            call.name = self._checked_name((yield from self._chars.string()))
        elif key in ("arguments", "parameters") and call.arguments is None and not call.has_begun:
            yield from self._arguments(call, char)
        elif char == '"':
            yield from self._chars.string()
        elif char in "{[":
            yield from self._chars.container(char, lambda _: None)
        else:
            yield from self._chars.word(char)

    def _arguments(self, call: _Call, char: str) -> Reader:
        """Reads an object, or a string that contains one."""
        if char == "{" and call.name is not None and self._is_certain:
            self._begin(call)
            self._is_in_object = False  # what is held has been output, wherever the text ends
            yield from self._chars.container(char, self._out.add_arguments)
            self._chars.held.clear()
            return
        if char == "{":
            chars: list[str] = []
            yield from self._chars.container(char, chars.append)
            call.arguments = "".join(chars)
        elif char == '"':
            call.arguments = yield from self._chars.string()
        elif (yield from self._chars.word(char)) == "null":
            call.arguments = "{}"
        else:
            raise Mismatch

    def _checked_name(self, name: str) -> str:
        is_known = name in self._tool_names or not self._wants_known_name
        if not is_known or not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise Mismatch
        return name

    def _begin(self, call: _Call, arguments: str = "") -> None:
        assert call.name is not None
        call.has_begun = self._is_sure = True
        self._chars.held.clear()
        self.num_calls += 1
        index = self.num_calls - 1
        is_wanted = self._max_calls is None or index < self._max_calls
        self._out.begin(index, self._format.make_id(), call.name, is_wanted=is_wanted)
        self._out.add_arguments(arguments)

"""Takes tool calls out of text that arrives in pieces, whatever the pieces.

The parser reads character by character and decides on what it has read alone, so that a text gives
the same calls however it is split. A call begins as soon as its name and the first character of its
arguments are known; from then on its arguments stream. Until then it may turn out to be no call,
and comes out as the text that it is.
"""

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from router.outputs import ToolCallDelta
from router.tool_formats import ARGUMENTS_MARKER, ToolCallFormat
from router.tool_output import Output, Parsed

MAX_NAME_CHARS = 64
_SPACE = " \t\r\n"

_Reader = Generator[None, str, None]
_CharReader = Generator[None, str, str]


class Parser(Protocol):
    """The state of one sequence."""

    num_calls: int
    """Calls that have begun."""

    def push(self, text: str) -> Parsed:
        """Reads more text."""
        ...

    def flush(self) -> Parsed:
        """Returns what was held back, at the end of the text."""
        ...


class _NotACall(Exception):
    """What is held is text; its last character may begin something else."""


class _Ended(Exception):
    """There is no more text."""


@dataclass(slots=True)
class _Call:
    """A call that is being read."""

    name: str | None = None
    arguments: str | None = None
    """Complete, but not sent yet."""
    has_begun: bool = False


class ToolCallParser:
    """Reads the calls of a format."""

    def __init__(
        self, format_: ToolCallFormat, *, tool_names: Iterable[str], max_calls: int | None = None
    ) -> None:
        """Calls beyond `max_calls` are left out."""
        self.num_calls = 0
        self._format = format_
        self._tool_names = frozenset(tool_names)
        self._max_calls = max_calls
        self._out = Output()
        self._held: list[str] = []
        """Was read and is not decided on."""
        self._pushed_back = ""
        self._is_plain = False
        """Only the first character of `start` matters."""
        self._is_sure = False
        """Whether a call has begun since the marker."""
        self._wants_known_name = False
        self._reader = self._read()
        next(self._reader)

    def push(self, text: str) -> Parsed:
        if self._is_plain:
            start = text.find(self._format.start[0]) if self._format.start else -1
            plain = text if start < 0 else text[:start]
            self._out.say(plain)
            text = text[len(plain) :]
        for char in text:
            self._reader.send(char)
        return self._out.take()

    def flush(self) -> Parsed:
        with suppress(_Ended):
            self._reader.throw(_Ended())
        if not self._is_sure:
            self._out.say("".join(self._held))
        if not self.num_calls:
            self._out.say_space()
        return self._out.take()

    def _read(self) -> _Reader:
        if self._format.is_bare:
            self._wants_known_name = True
            yield from self._attempt(self._bare_calls())
            self._wants_known_name = False
        while True:
            yield from self._plain_text()
            yield from self._attempt(self._marked_calls())

    def _attempt(self, calls: _Reader) -> _Reader:
        """Reads calls, or text up to the first character that cannot be part of one."""
        try:
            yield from calls
        except _NotACall:
            self._push_back()
        self._out.say("".join(self._held))
        self._held.clear()
        self._is_sure = False

    def _plain_text(self) -> _Reader:
        """Reads until the start marker is complete, and holds that."""
        marker, num_matched = self._format.start, 0
        while not marker or num_matched < len(marker):
            self._is_plain = not num_matched and not self._pushed_back
            char = yield from self._next()
            self._is_plain = False
            if marker and char == marker[num_matched]:
                num_matched += 1
                continue
            num_matched = int(char == marker[:1])  # which is nowhere else in the marker
            num_said = len(self._held) - num_matched
            self._out.say("".join(self._held[:num_said]))
            del self._held[:num_said]

    def _bare_calls(self) -> _Reader:
        char = yield from self._next_but(_SPACE)
        yield from self._json_calls(char)

    def _marked_calls(self) -> _Reader:
        char = yield from self._next_but(_SPACE)
        if self._format.is_named and char not in "[{":
            yield from self._named_call(char)
        else:
            yield from self._json_calls(char)
        if self._format.end:
            yield from self._end_marker()

    def _json_calls(self, char: str) -> _Reader:
        if char == "[":
            yield from self._list()
            return
        while char == "{":
            yield from self._object()
            char = yield from self._next_but(_SPACE + self._format.separators)
        if not self._is_sure:
            raise _NotACall
        self._push_back()

    def _list(self) -> _Reader:
        while (char := (yield from self._next_but(_SPACE + ","))) == "{":
            yield from self._object()
        if char != "]" or not self._is_sure:
            raise _NotACall
        self._held.clear()

    def _named_call(self, name: str) -> _Reader:
        while (char := (yield from self._next())) != "{":
            name += char
            if len(name) > MAX_NAME_CHARS + len(ARGUMENTS_MARKER):
                raise _NotACall
        name = name.rstrip().removesuffix(ARGUMENTS_MARKER).rstrip()
        if name not in self._tool_names:
            raise _NotACall
        yield from self._arguments(_Call(name), char)

    def _end_marker(self) -> _Reader:
        char = yield from self._next_but(_SPACE)
        for expected in self._format.end[:-1]:
            if char != expected:
                raise _NotACall
            char = yield from self._next()
        if char != self._format.end[-1]:
            raise _NotACall
        self._held.clear()

    def _object(self) -> _Reader:
        """Reads one call, after its opening brace."""
        call = _Call()
        while (char := (yield from self._next_but(_SPACE + ","))) == '"':
            key = yield from self._string()
            if (yield from self._next_but(_SPACE)) != ":":
                raise _NotACall
            char = yield from self._next_but(_SPACE)
            yield from self._value(call, key, char)
        if char != "}" or call.name is None:
            raise _NotACall
        if not call.has_begun:
            self._begin(call, "{}")
        self._held.clear()

    def _value(self, call: _Call, key: str, char: str) -> _Reader:
        if key == "name" and call.name is None:
            if char != '"':
                raise _NotACall
            call.name = self._checked_name((yield from self._string()))
            if call.arguments is not None:
                self._begin(call, call.arguments)
        elif key in ("arguments", "parameters") and call.arguments is None and not call.has_begun:
            yield from self._arguments(call, char)
        elif char == '"':
            yield from self._string()
        elif char in "{[":
            yield from self._container(char, lambda _: None)
        else:
            yield from self._word(char)

    def _arguments(self, call: _Call, char: str) -> _Reader:
        """Reads an object, which streams if the name is known; or a string that holds one."""
        if char == "{" and call.name is not None:
            self._begin(call)
            yield from self._container(char, self._out.add_arguments)
            self._held.clear()
            return
        if char == "{":
            chars: list[str] = []
            yield from self._container(char, chars.append)
            call.arguments = "".join(chars)
        elif char == '"':
            call.arguments = yield from self._string()
        elif (yield from self._word(char)) == "null":
            call.arguments = "{}"
        else:
            raise _NotACall
        if call.name is not None:
            self._begin(call, call.arguments)

    def _checked_name(self, name: str) -> str:
        is_known = name in self._tool_names or not self._wants_known_name
        if not is_known or not name.isprintable() or not 1 <= len(name) <= MAX_NAME_CHARS:
            raise _NotACall
        return name

    def _begin(self, call: _Call, arguments: str = "") -> None:
        assert call.name is not None
        call.has_begun = self._is_sure = True
        self._held.clear()
        self.num_calls += 1
        index = self.num_calls - 1
        is_wanted = self._max_calls is None or index < self._max_calls
        self._out.begin(index, self._format.make_id(), call.name, is_wanted=is_wanted)
        self._out.add_arguments(arguments)

    # The pieces of JSON, and of all text.

    def _container(self, char: str, keep: Callable[[str], None]) -> _Reader:
        """Reads an object or a list, after its opening character, by its brackets alone."""
        keep(char)
        depth, is_quoted, is_escaped = 1, False, False
        while depth:
            char = yield from self._next()
            keep(char)
            if is_quoted:
                is_quoted = char != '"' or is_escaped
                is_escaped = char == "\\" and not is_escaped
            elif char == '"':
                is_quoted = True
            else:
                depth += (char in "{[") - (char in "}]")

    def _string(self) -> _CharReader:
        """Reads a string, after its opening quote."""
        chars = ['"']
        is_escaped = False
        while True:
            char = yield from self._next()
            chars.append(char)
            if char == '"' and not is_escaped:
                break
            is_escaped = char == "\\" and not is_escaped
        try:
            text = str(json.loads("".join(chars), strict=False))
        except ValueError:
            raise _NotACall from None
        return text.encode(errors="replace").decode()  # an escape may be half a surrogate pair

    def _word(self, char: str) -> _CharReader:
        """Reads a number or a name, which begins with `char`."""
        word = ""
        while char not in _SPACE + ",}]":
            word += char
            char = yield from self._next()
        self._push_back()
        return word

    def _next_but(self, skipped: str) -> _CharReader:
        while (char := (yield from self._next())) in skipped:
            pass
        return char

    def _next(self) -> _CharReader:
        if self._pushed_back:
            char, self._pushed_back = self._pushed_back[0], self._pushed_back[1:]
        else:
            char = yield
        self._held.append(char)
        return char

    def _push_back(self) -> None:
        self._pushed_back = self._held.pop() + self._pushed_back


class ForcedCallParser:
    """Reads the arguments of one call, which are all that the model writes."""

    def __init__(self, name: str, *, make_id: Callable[[], str]) -> None:
        self.num_calls = 0
        self._name = name
        self._make_id = make_id

    def push(self, text: str) -> Parsed:
        if self.num_calls:
            return Parsed("", [ToolCallDelta(index=0, arguments=text)] if text else [])
        self.num_calls = 1
        call = ToolCallDelta(index=0, id=self._make_id(), name=self._name, arguments=text)
        return Parsed("", [call])

    def flush(self) -> Parsed:
        return Parsed("", [])

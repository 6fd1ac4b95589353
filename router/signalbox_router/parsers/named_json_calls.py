"""Tool calls as a name and JSON arguments between markers: one class with parameters."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_router.parsers.call_parser import MARKER, CallParser, parts_of
from signalbox_router.parsers.call_rules import (
    arguments_rule,
    literal,
    opening_rules,
    repeated,
    written,
)
from signalbox_router.parsers.char_reader import Mismatch, Reader, TextReader
from signalbox_router.parsers.parser_output import Parser
from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.prompt.chat.conversation import MAX_NAME_CHARS, Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_NUMBERED = re.compile(r"(.+):\d+")
_NUM_OTHER_CHARS = 32
"""Characters that may stand beside a name, before the text that ends it."""


@dataclass(frozen=True, kw_only=True)
class NamedJsonCalls(ToolCallFormat):
    """Each call has its name before its arguments; other markers are around all calls.

    What stands in a call is as templates write it, with line breaks. The parser takes any white
    space between markers and words.
    """

    end: str
    """Marker that closes what the first of `opening` opens."""
    call: tuple[str, str, str]
    """The texts before the name, between it and the arguments, and after them. The second of
    `opening` begins the first, for models that leave the markers around all calls out."""
    separator: str = ""
    """White space between calls."""
    prefix: str = ""
    """Text before the name of a tool."""
    is_numbered: bool = False
    """True if a colon and the number of the call follow the name; all of it is the call's id."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.opening, *MARKER.findall("".join(self.call)), self.end)))

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return NamedJsonCallParser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        end, before, after, end_of_call = (
            " ".join(written(text, self.markers, vocabulary)) for text in (self.end, *self.call)
        )
        choice = " | ".join(f"call_{i}" for i in range(len(tools)))
        calls = f"opening_0 {repeated('call', self.separator, is_parallel=is_parallel)} {end}"
        rules = [f"call: {before} named", f"named: {choice}"]
        if len(self.opening) > 1:
            rest = written(self.call[0].removeprefix(self.opening[1]), self.markers, vocabulary)
            rules.append(f"bare: {' '.join(('opening_1', *rest))} named")
            calls += f" | {repeated('bare', self.separator, is_parallel=is_parallel)}"
        rules += [f"calls: {calls}", *opening_rules(self.opening, self.markers, vocabulary)]
        number = "/:(0|[1-9][0-9]{0,2})/" if self.is_numbered else ""
        for i, tool in enumerate(tools):
            name = f"{literal(f'{self.prefix}{tool.name}')} {number}"
            rules.append(f"call_{i}: {name} {after} arguments_{i} {end_of_call}")
            rules.append(arguments_rule(f"arguments_{i}", i, tool))
        return "\n".join(rules)


class NamedJsonCallParser(CallParser):
    """Parses the calls of one sequence."""

    def __init__(self, format_: NamedJsonCalls, tools: Sequence[Tool], **options: Any) -> None:
        super().__init__(format_, tools, **options)
        self._format = format_
        self._before, self._after, self._end_of_call = map(parts_of, format_.call)
        self._ids = set[str]()

    def _calls(self, opening: str) -> Reader:
        first, *others = self._before
        self._is_in_call = True
        if opening == self._format.opening[0]:
            yield from self._read_all(first)
        while True:
            yield from self._read_all(*others)
            yield from self._call()
            if (yield from self._one_of(self._format.end, first)) != first:
                break
            self._is_in_call = True
        self._accept()

    def _call(self) -> Reader:
        text = yield from self._name()
        yield from self._read_all(*self._after[1:])
        call_id = ""
        found = _NUMBERED.fullmatch(text) if self._format.is_numbered else None
        if found is not None:
            call_id, text = text * (text not in self._ids), found[1]
            self._ids.add(call_id)
        name = self._checked_name(text.removeprefix(self._format.prefix))
        yield from self._json_call(name, call_id=call_id)
        yield from self._read_all(*self._end_of_call)
        self._accept()

    def _name(self) -> TextReader:
        """Reads a name and the first text after it."""
        end = self._marker(self._after[0])
        text = ""
        while not text.endswith(end):
            text += yield from self._chars.next()
            if len(text) > MAX_NAME_CHARS + _NUM_OTHER_CHARS + len(end):
                raise Mismatch
        return text.removesuffix(end).strip()

    def _read_all(self, *parts: str) -> Reader:
        """Reads markers and words, with any white space before each."""
        for part in parts:
            yield from self._literal(part, (yield from self._next_but_space()))

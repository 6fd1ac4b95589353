"""Tool calls as JSON objects, with markers around them or without: one class with parameters."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_router.parsers.call_parser import CallParser
from signalbox_router.parsers.call_rules import call_rule, literal, marker, opening_rules, repeated
from signalbox_router.parsers.char_reader import SPACE, Mismatch, Reader, json_object
from signalbox_router.parsers.parser_output import Parser
from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.prompt.chat.conversation import Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

ARGUMENTS_KEYS = ("arguments", "parameters")
"""Keys under which models write the arguments."""
_FENCE = "```"
_MAX_LANGUAGE_CHARS = 20


@dataclass(frozen=True, kw_only=True)
class JsonCalls(ToolCallFormat):
    """Each call is a JSON object with a name and its arguments, or a list has several of them."""

    end: str = ""
    """Marker that closes calls."""
    is_bare: bool = False
    """True if any JSON object in the text that names a tool is a call, also in a code fence."""
    arguments_key: str = "arguments"
    """Key under which the model's template writes the arguments."""
    name_key: str = "name"
    """Key under which it writes the name."""
    number_key: str = ""
    """Key under which it writes the number of the call, if any; that is none of the call's id."""
    is_list: bool = False
    """True if the template writes all calls as one list."""
    separators: str = ""
    """Characters between calls, beside white space."""
    space: str = ""
    """White space that the template writes inside the markers."""

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (*self.opening, self.end)))

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return JsonCallParser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        space, separator = literal(self.space), self.separators[-1:] or ","
        is_one = bool(self.end) and not (self.is_list or self.is_bare)
        """True if each call has markers of its own."""
        one = repeated("call", f"{separator} ", is_parallel=is_parallel and not is_one)
        # An opening may have the bracket of the list, and only the first has an end.
        begun = f'{one} "]"' if self.is_list else one
        listed = f'"[" {begun}' if self.is_list else one
        marked = [
            f"opening_{i} {space} {begun if text.endswith('[') else listed}"
            for i, text in enumerate(self.opening)
        ]
        if self.end:
            marked[0] = f"{marked[0]} {space} {marker(self.end, vocabulary)}"
        if self.is_bare:
            marked.append(listed)
        calls = repeated("marked", "\n", is_parallel=is_parallel) if is_one else "marked"
        keys = {"name_key": self.name_key, "number_key": self.number_key}
        return "\n".join(
            (
                f"calls: {calls}",
                f"marked: {' | '.join(marked)}",
                call_rule("call", tools, arguments_key=self.arguments_key, **keys),
                *opening_rules(self.opening, self.markers, vocabulary),
            )
        )


@dataclass(slots=True)
class Call:
    """A call that is being read."""

    name: str | None = None
    id: str = ""
    """The model's own id, if it writes one before the arguments."""
    arguments: str | None = None
    """The arguments, complete but not sent yet."""
    has_begun: bool = False


class JsonCallParser(CallParser):
    """Parses the calls of one sequence."""

    _bare_openings: tuple[str, ...] = ("{", "[", "`")

    def __init__(self, format_: JsonCalls, tools: Sequence[Tool], **options: Any) -> None:
        openings = (*format_.opening, *self._bare_openings * format_.is_bare)
        super().__init__(format_, tools, openings=openings, **options)
        self._format = format_
        self._is_bare = False
        """True if there was no marker, so that only a known tool makes a call."""

    def _calls(self, opening: str) -> Reader:
        self._is_bare = opening not in self._format.opening
        if self._is_bare:
            yield from self._bare_calls(opening)
            return
        char = opening[-1] if opening[-1] in "[{" else (yield from self._next_but_space())
        yield from self._json_calls(char)
        if self._format.end:
            yield from self._literal(self._format.end, (yield from self._next_but_space()))
            self._accept()

    def _bare_calls(self, char: str) -> Reader:
        """Reads JSON calls of known tools, inside a code fence or without."""
        is_fenced = char == _FENCE[0]
        if is_fenced:
            yield from self._literal(_FENCE, char)
            language = ""
            while (char := (yield from self._chars.next())) not in SPACE + "{[":
                language += char
                if len(language) > _MAX_LANGUAGE_CHARS:
                    raise Mismatch
            if char in SPACE:
                char = yield from self._next_but_space()
        yield from self._json_calls(char)
        if is_fenced:
            yield from self._literal(_FENCE, (yield from self._next_but_space()))
            self._accept()

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
        self._accept()

    def _object(self) -> Reader:
        """Reads one call, after its opening brace."""
        self._is_in_call = True
        call = Call()
        while (char := (yield from self._chars.next_but(SPACE + ","))) == '"':
            key = yield from self._chars.string()
            if (yield from self._next_but_space()) != ":":
                raise Mismatch
            char = yield from self._next_but_space()
            yield from self._value(call, key, char)
        if char != "}" or call.name is None:
            raise Mismatch
        if not call.has_begun:
            self._begin(call.name, json_object(call.arguments or "{}"))
        self._accept()

    def _value(self, call: Call, key: str, char: str) -> Reader:
        if key == self._format.name_key and call.name is None:
            if char != '"':
                raise Mismatch
            name = yield from self._chars.string()
            call.name = self._checked_name(name, is_known=self._is_bare)
        elif key in ARGUMENTS_KEYS and call.arguments is None and not call.has_begun:
            yield from self._arguments(call, char)
        elif char == '"':
            yield from self._chars.string()
        elif char in "{[":
            yield from self._chars.container(char, lambda _: None)
        else:
            yield from self._chars.word(char)

    def _arguments(self, call: Call, char: str) -> Reader:
        """Reads an object, or a string that contains one."""
        if char == "{" and call.name is not None and self._is_certain:
            self._begin(call.name, call_id=call.id)
            call.has_begun = True
            yield from self._chars.container(char, self._out.add_arguments)
            self._accept()
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

"""Tool calls as calls of Python functions with named arguments: one class with parameters."""

import json
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_contract.structured_output.schema.vocabulary import SchemaError
from signalbox_router.parsers.call_rules import (
    check_is_json,
    literal,
    marker,
    opening_rules,
    repeated,
    schema_rule,
)
from signalbox_router.parsers.char_reader import Mismatch, Reader, TextReader, json_object
from signalbox_router.parsers.json_calls import JsonCallParser, JsonCalls
from signalbox_router.parsers.parser_output import Parser
from signalbox_router.parsers.python_values import json_of_python, text_of_string
from signalbox_router.parsers.raw_values import ArgumentSchemas, listed_arguments, refused
from signalbox_router.prompt.chat.conversation import MAX_NAME_CHARS, Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_BOOLEAN = frozenset({"boolean"})
_CLOSERS = {"(": ")", "[": "]", "{": "}"}


@dataclass(frozen=True, kw_only=True)
class PythonicCalls(JsonCalls):
    """Each call is `name(key=value, ...)`, with values as in Python, which JSON is too.

    Without a marker, where `is_bare` allows it, only a list that begins with a known tool is calls.
    After a marker a list may have the calls as JSON, which models write that are asked to.
    """

    is_list: bool = True
    """True if brackets are around calls, with commas between; otherwise each has a line."""

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return PythonicCallParser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        calls = repeated("call", ", " if self.is_list else "\n", is_parallel=is_parallel)
        calls = f'"[" {calls} "]"' if self.is_list else f'"\\n" {calls} "\\n"'
        bare = f" | {calls}" if self.is_bare else ""
        calls = f"opening_0 {calls} {marker(self.end, vocabulary)}{bare}"
        rules = opening_rules(self.opening, self.markers, vocabulary)
        rules += [f"calls: {calls}", f"call: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            rules.append(f'call_{i}: {literal(f"{tool.name}(")} first_{i}_0 ")"')
            try:
                rules += _argument_rules(i, tool)
            except SchemaError as error:
                raise refused(i, tool, str(error)) from None
        return "\n".join(rules)


def _argument_rules(position: int, tool: Tool) -> Iterator[str]:
    """Yields the rules of `raw_values.listed_arguments` for a tool."""
    check_is_json(position, tool)
    schemas = ArgumentSchemas.of(tool if tool.strict else None, is_enforced=True)

    def argument(here: str, key: str, schema: Any) -> Iterator[str]:
        yield f"argument_{here}: {literal(f'{key}=')} value_{here}"
        if schemas.types_of(schema) == _BOOLEAN and schema.keys() <= {"type", "description"}:
            yield f'value_{here}: "True" | "False"'
        else:
            yield schema_rule(f"value_{here}", schemas.document(schema, position))

    yield from listed_arguments(
        position,
        schemas,
        is_name=str.isidentifier,
        sign="=",
        separator=", ",
        argument=argument,
    )


class PythonicCallParser(JsonCallParser):
    """Parses the calls of one sequence."""

    _bare_openings = ("[",)

    def _calls(self, opening: str) -> Reader:
        self._is_in_call = True
        is_marked = opening in self._format.opening
        if self._format.is_list and is_marked:
            yield from self._literal("[", (yield from self._next_but_space()))
        char = yield from self._next_but_space()
        if is_marked and self._format.is_list and char == "{":
            self._chars.push_back()
            yield from self._list()
            yield from self._literal(self._format.end, (yield from self._next_but_space()))
            self._accept()
            return
        while _is_of_name(char):
            yield from self._call(char, is_known=not is_marked)
            char = yield from self._next_but_space()
            if self._format.is_list and char == ",":
                char = yield from self._next_but_space()
        if not self._is_sure:
            raise Mismatch
        if self._format.is_list:
            if char != "]":
                raise Mismatch
            self._accept()
            if not is_marked or not self._format.end:
                return
            char = yield from self._next_but_space()
        yield from self._literal(self._format.end, char)
        self._accept()

    def _call(self, name: str, *, is_known: bool) -> Reader:
        self._is_in_call = True
        while (char := (yield from self._chars.next())) != "(":
            if not _is_of_name(char) or len(name) == MAX_NAME_CHARS:
                raise Mismatch
            name += char
        self._checked_name(name, is_known=is_known)
        arguments = yield from self._keywords()
        after = yield from self._next_but_space()
        if not self._follows_call(after):
            raise Mismatch
        self._chars.push_back()
        self._begin(name, json_object(f"{{{json_of_python(arguments)}}}"))

    def _keywords(self) -> TextReader:
        """Reads to the bracket that closes the call, and what must follow it.

        Returns the arguments, with strings as JSON.
        """
        held, parts, closers = self._chars.held, list[str](), [")"]
        begin = len(held)
        while closers:
            char = yield from self._chars.next()
            if char in "\"'":
                parts.append("".join(held[begin:-1]))
                begin = len(held) - 1
                end = yield from self._end_of_string(char, closers)
                string = text_of_string("".join(held[begin:end]))
                parts.append(json.dumps(string, ensure_ascii=False))
                begin = end
            elif char in _CLOSERS:
                closers.append(_CLOSERS[char])
            elif char in ")]}" and char != closers.pop():
                raise Mismatch
        parts.append("".join(held[begin:]))
        return "".join(parts).rstrip()[:-1]

    def _end_of_string(self, quote: str, closers: list[str]) -> Generator[None, str, int]:
        """Reads a string after its opening quote, and what shows that a quote is its end: templates
        write texts that escape no quotes.

        Returns where held characters go on after it; those of `closers` that follow it are gone.
        """
        is_escaped = False
        while True:
            char = yield from self._chars.next()
            if char == quote and not is_escaped:
                end = len(self._chars.held)
                if (yield from self._follows_string(closers)):
                    return end
            is_escaped = char == "\\" and not is_escaped

    def _follows_string(self, closers: list[str]) -> Generator[None, str, bool]:
        """Reads what follows a quote, and returns whether it can follow a string: brackets that
        close, then the next value, the next argument or the end of the call."""
        left = len(closers)
        char = yield from self._next_but_space()
        while left and char == closers[left - 1]:
            left -= 1
            char = yield from self._next_but_space()
        if not left:
            is_end = self._follows_call(char)
        elif char == "," and left == 1:
            while _is_of_name(char := (yield from self._next_but_space())):
                pass
            is_end = char in "=)"
        else:
            is_end = char == "," or (char == ":" and closers[left - 1] == "}")
        self._chars.push_back()
        if is_end:
            del closers[left:]
        return is_end

    def _follows_call(self, char: str) -> bool:
        if self._format.is_list:
            return char in ",]"
        return _is_of_name(char) or char == self._marker(self._format.end)[0]


def _is_of_name(char: str) -> bool:
    return char.isalnum() or char in "_.-"

"""Tool calls as a name and arguments between tags, as in XML: one class with parameters."""

import json
from collections.abc import Container, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_contract.structured_output.schema.vocabulary import SchemaError
from signalbox_router.parsers.call_parser import MARKER, CallParser, parts_of
from signalbox_router.parsers.call_rules import lark_of, literal, opening_rules, repeated, written
from signalbox_router.parsers.char_reader import Mismatch, Reader, TextReader
from signalbox_router.parsers.parser_output import MARK, Parser
from signalbox_router.parsers.raw_values import (
    TEXT,
    ArgumentSchemas,
    ValueRules,
    has_odd_quotes,
    json_of,
    refused,
)
from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.prompt.chat.conversation import Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_MAX_KEY_CHARS = 256
"""Most characters of the name of an argument."""


@dataclass(frozen=True, kw_only=True)
class TaggedCalls(ToolCallFormat):
    """Each call has its name and the names and values of its arguments between tags.

    Tags are as templates write them, with line breaks. The parser takes any white space, but a line
    break of `argument` is no part of a value.
    """

    end: str
    """Marker that closes what the first of `opening` opens; "" if that begins `call`."""
    call: tuple[str, str, str]
    """The texts before the name, after it, and at the end of the call. If nothing but white space
    stands after it, the name ends with the first tag. Another of `opening` is
    the first of these, where models leave the marker out."""
    argument: tuple[str, str, str]
    """The texts before the name of an argument, after it, and after the value."""
    kinds: tuple[str, str] = ("", "")
    """The texts between `argument`'s second and the value: that of a text, and that of JSON."""
    token: str = ""
    """Part of all tags that is a token, where they are none."""
    is_group: bool = False
    """True if one pair of markers is around all calls."""
    space: str = "\n"
    """White space inside the markers, and between calls."""

    @property
    def markers(self) -> tuple[str, ...]:
        if self.token:
            return (self.token,)
        texts = (*self.opening, self.end, *self.call, *self.argument)
        return tuple(dict.fromkeys(MARKER.findall(" ".join(texts))))

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return TaggedCallParser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        def tags(text: str) -> str:
            return " ".join(written(text, self.markers, vocabulary))

        before, after, end_of_call = self.call
        marked, space = "opening_0 named", tags(self.space)
        if self.end:
            opening, call, end = f"opening_0 {space}", f"{tags(before)} named", tags(self.end)
            if self.is_group:
                call = repeated("call", self.space, is_parallel=is_parallel)
            marked = f"{opening} {call} {space} {end}"
            if len(self.opening) > 1:
                marked += f" | opening_1 named {space} {end}"
        calls = repeated("marked", self.space, is_parallel=is_parallel and not self.is_group)
        rules = [
            f"calls: {calls}",
            f"marked: {marked}",
            f"call: {tags(before)} named",
            f"named: {' | '.join(f'call_{i}' for i in range(len(tools)))}",
            *opening_rules(self.opening, self.markers, vocabulary),
        ]
        for i, tool in enumerate(tools):
            try:
                arguments, parts = self._arguments(i, tool, vocabulary)
            except SchemaError as error:
                raise refused(i, tool, str(error)) from None
            name = tags(f"{tool.name}{after}")
            rules += [f"call_{i}: {name} {arguments} {tags(end_of_call)}", *parts]
        return "\n".join(rules)

    def _arguments(
        self, position: int, tool: Tool, vocabulary: Vocabulary
    ) -> tuple[str, list[str]]:
        """Returns what matches the arguments of a tool, and the rules that it names."""
        before, after, end = self.argument
        known = tool if tool.strict else None
        schemas = ArgumentSchemas.of(known, is_enforced=True)
        tag = parts_of(end)[0]
        is_text = written(tag, self.markers, vocabulary) == [literal(tag)]
        values = ValueRules(
            schemas=schemas,
            position=position,
            end=written(end, self.markers, vocabulary),
            stop=tag if is_text else "",
            is_free=not tool.strict,
            lark=lark_of(tool) if tool.strict else "",
        )
        names, rules = [], []
        for j, (key, schema) in enumerate(schemas.properties.items()):
            self._check_key(key)
            name, value = f"argument_{position}_{j}", f"value_{position}_{j}"
            tag = " ".join(written(f"{before}{key}{after}", self.markers, vocabulary))
            kind = self._kind(schemas.types_of(schema), is_free=not tool.strict)
            rules.append(f"{name}: {tag} {kind} {value}")
            rules += values.of(value, schema)
            names.append(f"{name}{'' if key in schemas.required else '?'}")
        if schemas.others is not False:
            name, value = f"other_{position}", f"others_{position}"
            key_of, rule = self._other_key(position, schemas.properties, vocabulary)
            kind = self._kind(schemas.types_of(schemas.others), is_free=not tool.strict)
            rules += [f"{name}: {key_of} {kind} {value}", rule]
            rules += values.of(value, schemas.others)
            names.append(f"{name}*")
        return " ".join(names), rules

    def _kind(self, types: frozenset[str], *, is_free: bool) -> str:
        """Returns what matches the kind of an argument's value."""
        if not any(self.kinds):
            return ""
        text, json_ = map(literal, self.kinds)
        return f"({text} | {json_})" if is_free else text if types == TEXT else json_

    def _other_key(
        self, position: int, declared: Iterable[str], vocabulary: Vocabulary
    ) -> tuple[str, str]:
        """Returns what matches the name of an argument that is not declared, and its rule.

        The name is one text with what is around it, as it may begin like a declared one.
        """
        before, after = (written(text, self.markers, vocabulary) for text in self.argument[:2])
        name = f"OTHER_{position}"
        excluded = "".join(f" & ~{literal(one)}" for one in declared)
        key = [f"(/[^<>\\s{self.argument[1].strip()[:1]}]{{1,{_MAX_KEY_CHARS}}}/{excluded})"]
        if before and before[-1].startswith('"'):
            key.insert(0, before.pop())
        if after and after[0].startswith('"'):
            key.append(after.pop(0))
        return " ".join([*before, name, *after]), f"{name}: {' '.join(key)}"

    def _check_key(self, key: str) -> None:
        after = self.argument[1].strip()[:1]
        if after in key or key != key.strip() or not 1 <= len(key) <= _MAX_KEY_CHARS:
            raise SchemaError(f"the format of the model's calls has no argument named {key!r}")


class TaggedCallParser(CallParser):
    """Parses the calls of one sequence."""

    def __init__(self, format_: TaggedCalls, tools: Sequence[Tool], **options: Any) -> None:
        super().__init__(format_, tools, **options)
        self._format = format_
        self._schemas: dict[str, ArgumentSchemas] = {}
        before, after, _ = format_.argument
        self._around_key = self._marker(f"\n{before}"), self._marker(after)
        self._end_of_call = self._marker(f"\n{format_.call[2]}\n{format_.end}")
        self._last_chars = {after[-1], self._end_of_call[-1]}

    def _calls(self, opening: str) -> Reader:
        before, _, _ = self._format.call
        self._is_in_call = True
        if opening == self._format.opening[0] != before:
            yield from self._tag(before)
        while True:
            yield from self._call()
            if not self._format.end:
                return
            if (yield from self._one_of(self._format.end, before)) != before:
                break
            self._is_in_call = True
        self._accept()

    def _call(self) -> Reader:
        """Reads a call after what stands before its name."""
        _, after, end_of_call = self._format.call
        begin_key, end_key, _ = self._format.argument
        ends = (after,) if after.strip() else (begin_key, end_of_call)
        text, tag = yield from self._name_until(*ends)
        name = self._checked_name(text)
        if self._is_certain:
            self._begin(name)
        schemas, arguments = self._schemas_of(name), dict[str, str]()
        if after.strip():
            tag = yield from self._one_of(begin_key, end_of_call)
        while tag == begin_key:
            key, _ = yield from self._name_until(end_key)
            types = schemas.types(key)
            if any(self._format.kinds):
                text, _ = self._format.kinds
                is_text = (yield from self._one_of(*self._format.kinds)) == text
                types = types & TEXT or types if is_text else types - TEXT
            if self._is_certain:
                self._out.add_arguments(f"{', ' if arguments else '{'}{json.dumps(key)}: ")
            arguments[key] = ""
            if self._is_certain and types == TEXT:
                yield from self._stream_text()
            else:
                value = yield from self._value(name, types, arguments)
                arguments[key] = f"{json.dumps(key)}: {value}"
                if self._is_certain:
                    self._accept()
                    self._out.add_arguments(value)
            tag = yield from self._one_of(begin_key, end_of_call)
        if self._is_certain:
            self._out.add_arguments("}" if arguments else "{}")
            self._accept()
        else:
            self._begin(name, f"{{{', '.join(arguments.values())}}}")

    def _schemas_of(self, name: str) -> ArgumentSchemas:
        if name not in self._schemas:
            self._schemas[name] = ArgumentSchemas.of(self._tools.get(name), is_enforced=False)
        return self._schemas[name]

    def _value(self, name: str, types: frozenset[str], given: Container[str]) -> TextReader:
        """Reads a value and the tag after it; returns JSON.

        Args:
            given: names of arguments that have been read, this one included.
        """
        end = self._format.argument[2]
        first = parts_of(end)[0]
        tool = self._tools.get(name)
        is_enforced = self._is_certain or (tool is not None and tool.strict)
        is_json = "string" not in types or (types != TEXT and is_enforced)
        part = yield from self._chars.next()
        if is_in_lines := part == "\n" and self._format.argument[1].endswith("\n"):
            part = ""
        line = "\n" if end.startswith("\n") and first not in self._marked else ""
        # Where a grammar excludes the end from a text, it is the end with its line break.
        last = f"{line}{first}" if is_enforced and types == TEXT and is_in_lines else first
        text, is_open = "", True
        while is_open:
            while not part.endswith(self._marker(last)):
                part += yield from self._chars.next()
                if not is_enforced and (found := self._following(part, name, given)):
                    self._chars.push_back(len(found))
                    return json_of((text + part).removesuffix(found).replace(MARK, ""), types)
            is_open = is_json and (has_odd_quotes(part) != bool(text))
            text, part = text + part, ""
        text = text.removesuffix(self._marker(last)).replace(MARK, "")
        if end.startswith("\n") and last == first:
            text = text.removesuffix("\n")
        yield from self._tag(end.lstrip()[len(first) :])
        return json_of(text, types)

    def _following(self, text: str, name: str, given: Container[str]) -> str:
        """Returns what a text ends with that follows a value in lines of its own, where models
        leave its tag out: another argument of the tool or the end of the call; "" for none."""
        if not self._format.argument[2].startswith("\n") or text[-1] not in self._last_chars:
            return ""
        if text.endswith(self._end_of_call):
            return self._end_of_call
        before, after = self._around_key
        _, found, key = text[-_MAX_KEY_CHARS:].rpartition(before)
        other = key.removesuffix(after)
        is_other = other != key and other in self._schemas_of(name).properties
        return f"{before}{key}" if found and is_other and other not in given else ""

    def _stream_text(self) -> Reader:
        """Reads a text and the tag after it, and outputs what cannot be the tag yet as JSON."""
        _, before, end = self._format.argument
        stop, line = self._marker(parts_of(end)[0]), "\n" if end.startswith("\n") else ""
        stops = (f"{line}{stop}", stop) if MARK in stop else (f"{line}{stop}",)
        pending = yield from self._chars.next()
        if pending == "\n" and before.endswith("\n"):
            pending = yield from self._chars.next()
        self._out.add_arguments('"')
        while pending not in stops:
            while pending and not any(one.startswith(pending) for one in stops):
                self._out.add_arguments(json.dumps(pending[0], ensure_ascii=False)[1:-1])
                pending = pending[1:]
            self._accept()
            pending += yield from self._chars.next()
        self._out.add_arguments('"')
        yield from self._tag(end.lstrip().removeprefix(parts_of(end)[0]))
        self._accept()

    def _name_until(self, *tags: str) -> Generator[None, str, tuple[str, str]]:
        """Reads a name and the tag after it, which may be any of `tags`; returns both."""
        firsts = {self._marker(parts_of(tag)[0]): tag for tag in tags}
        text, found = "", ""
        while not found:
            text += yield from self._chars.next()
            if len(text) > _MAX_KEY_CHARS + max(map(len, firsts)):
                raise Mismatch
            found = next(filter(text.endswith, firsts), "")
        tag = firsts[found]
        yield from self._tag(tag.lstrip().removeprefix(parts_of(tag)[0]))
        return text.removesuffix(found).strip(), tag

    def _tag(self, text: str) -> Reader:
        """Reads tags with any white space before each."""
        for part in parts_of(text):
            yield from self._literal(part, (yield from self._next_but_space()))

"""Calls of FunctionGemma and Gemma 4: `call:NAME{key:value,...}`, with a marker as quotes.

Keys have no quotes. The grammar writes lists and objects as JSON, which the parser takes, too.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_contract.structured_output.schema.vocabulary import SchemaError
from signalbox_router.parsers.call_parser import CallParser
from signalbox_router.parsers.call_rules import (
    check_is_json,
    literal,
    marker,
    opening_rules,
    schema_rule,
)
from signalbox_router.parsers.char_reader import SPACE, Mismatch, Reader, TextReader, json_object
from signalbox_router.parsers.parser_output import MARK, Parser
from signalbox_router.parsers.python_values import CONSTANTS
from signalbox_router.parsers.raw_values import (
    PLAIN_NAME,
    TEXT,
    ArgumentSchemas,
    ValueRules,
    listed_arguments,
    refused,
)
from signalbox_router.parsers.tool_call_format import ToolCallFormat
from signalbox_router.prompt.chat.conversation import MAX_NAME_CHARS, Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_CALL = "call:"
_KEY = re.compile(r"([{,]\s*)([^\s{}\[\],:\"]+)\s*:")
_CONSTANT = re.compile(rf"\b(?:{'|'.join(CONSTANTS)})\b(?!\s*:)")


@dataclass(frozen=True, kw_only=True)
class GemmaCalls(ToolCallFormat):
    end: str
    """Marker that closes a call."""
    quote: str
    """Marker at both ends of a text."""

    @property
    def markers(self) -> tuple[str, ...]:
        return (*self.opening, self.end, self.quote)

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return _GemmaCallParser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        end = marker(self.end, vocabulary)
        choice = " | ".join(f"call_{i}" for i in range(len(tools)))
        rules = [f"calls: call{'+' * is_parallel}", f"call: {choice}"]
        rules += opening_rules(self.opening, self.markers, vocabulary)
        for i, tool in enumerate(tools):
            name = literal(f"{_CALL}{tool.name}{{")
            rules.append(f'call_{i}: opening_0 {name} first_{i}_0 "}}" {end}')
            try:
                rules += self._arguments(i, tool, vocabulary)
            except SchemaError as error:
                raise refused(i, tool, str(error)) from None
        return "\n".join(rules)

    def _arguments(self, position: int, tool: Tool, vocabulary: Vocabulary) -> Iterator[str]:
        """Yields rules for arguments: `first_P_J` are those from J on, `rest_P_J` those after
        another."""
        check_is_json(position, tool)
        schemas = ArgumentSchemas.of(tool if tool.strict else None, is_enforced=True)
        quote = marker(self.quote, vocabulary)
        stop = self.quote if vocabulary.token_id(self.quote) is None else ""
        texts = ValueRules(schemas=schemas, position=position, end=[quote], stop=stop)

        def argument(here: str, key: str, schema: Any) -> Iterator[str]:
            is_text = schemas.types_of(schema) == TEXT
            before = quote if is_text else ""
            yield f"argument_{here}: {literal(f'{key}:')} {before} value_{here}"
            if is_text:
                yield from texts.of(f"value_{here}", schema)
            else:
                yield schema_rule(f"value_{here}", schemas.document(schema, position))

        yield from listed_arguments(
            position,
            schemas,
            is_name=lambda key: re.fullmatch(PLAIN_NAME, key) is not None,
            sign=":",
            separator=",",
            argument=argument,
        )


class _GemmaCallParser(CallParser):
    """Parses the calls of one sequence."""

    def __init__(self, format_: GemmaCalls, tools: Sequence[Tool], **options: Any) -> None:
        super().__init__(format_, tools, openings=(*format_.opening, _CALL), **options)
        self._format = format_

    def _calls(self, opening: str) -> Reader:
        """Reads a call after its marker, or of a tool that is not strict where models leave that
        out."""
        self._is_in_call = True
        if opening != _CALL:
            char = yield from self._chars.next_but(f"{SPACE}:")
            yield from self._literal(_CALL, char)
        name = ""
        while (char := (yield from self._chars.next())) != "{":
            name += char
            is_name = opening != _CALL or char.isalnum() or char in "_.-"
            if not is_name or len(name) > MAX_NAME_CHARS:
                raise Mismatch
        name = self._checked_name(name.strip(), is_known=opening == _CALL)
        if opening == _CALL and self._tools[name].strict:
            raise Mismatch
        arguments = yield from self._arguments()
        self._begin(name, json_object(arguments))
        yield from self._literal(self._format.end, (yield from self._next_but_space()))
        self._accept()

    def _arguments(self) -> TextReader:
        """Reads to the brace that closes the call; returns JSON."""
        quote = self._marker(self._format.quote)
        begun = quote.partition('"')[0] + '"'
        parts, plain, depth = list[str](), "{", 1
        while depth:
            char = yield from self._chars.next()
            plain += char
            depth += (char in "{[") - (char in "}]")
            if plain.endswith(quote):
                depth -= sum((one in "{[") - (one in "}]") for one in quote)
                text = yield from self._until(self._format.quote)
                text = text.removesuffix(self._format.quote).replace(MARK, "")
                parts += (_keyed(plain.removesuffix(quote)), json.dumps(text, ensure_ascii=False))
                plain = ""
            elif char == '"' and not plain.endswith(begun):
                string = yield from self._chars.string()
                parts += (_keyed(plain[:-1]), json.dumps(string, ensure_ascii=False))
                plain = ""
        return "".join((*parts, _keyed(plain)))


def _keyed(text: str) -> str:
    """Returns a part of JSON with quotes around its keys, and without Python's constants."""
    return _KEY.sub(r'\1"\2":', _CONSTANT.sub(lambda found: CONSTANTS[found[0]], text))


FORMATS = (
    GemmaCalls(
        name="gemma4",
        opening=("<|tool_call>",),
        end="<tool_call|>",
        quote='<|"|>',
        signs=(("<|tool_call>",),),
    ),
    GemmaCalls(
        name="functiongemma",
        opening=("<start_function_call>",),
        end="<end_function_call>",
        quote="<escape>",
        signs=(("<start_function_call>",),),
    ),
)

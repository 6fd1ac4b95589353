"""Answers of GPT-OSS: messages of a header and a text, with reasoning, calls and text in channels.

A call is a message to `functions.NAME`. The recipient stands before the channel or after it; the
prompt has opened the header of the first message.
"""

import re
from collections.abc import Sequence
from typing import Any

from signalbox_router.parsers.call_parser import CallParser
from signalbox_router.parsers.call_rules import arguments_rule, literal, marker
from signalbox_router.parsers.char_reader import Mismatch, Reader, TextReader
from signalbox_router.parsers.parser_output import MARK, Parser
from signalbox_router.parsers.tool_call_format import AnswerFormat
from signalbox_router.prompt.chat.conversation import Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

CHANNEL, START, MESSAGE = "<|channel|>", "<|start|>", "<|message|>"
CONSTRAIN, END, CALL, RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
_RECIPIENT = " to="
_ENDS = (END, CALL, RETURN)
_NAMESPACE = "functions."
_MAX_HEADER_CHARS = 256
_REASONING = "analysis"


class HarmonyCalls(AnswerFormat):
    @property
    def markers(self) -> tuple[str, ...]:
        return (CHANNEL, START, MESSAGE, CONSTRAIN, *_ENDS)

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return _HarmonyParser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        """Returns rules for one call, after which the model ends its answer.

        A model may name the recipient before the channel, as its template writes earlier calls.
        """
        channel, message, end = (marker(one, vocabulary) for one in (CHANNEL, MESSAGE, CALL))
        json_ = f'{marker(CONSTRAIN, vocabulary)} "json"'
        rules = [f"calls: {' | '.join(f'call_{i}' for i in range(len(tools)))}"]
        for i, tool in enumerate(tools):
            to = f"{_RECIPIENT}{_NAMESPACE}{tool.name}"
            rules += (
                f"call_{i}: header_{i} {message} arguments_{i} {end}",
                f"header_{i}: {channel} {literal(f'commentary{to} ')} {json_}"
                f' | {literal(to)} {channel} "commentary" (" json" | " "? {json_})?',
                arguments_rule(f"arguments_{i}", i, tool),
            )
        return "\n".join(rules)

    def answer(self, vocabulary: Vocabulary, *, calls: str, text: str | None) -> str:
        start, channel, message, constrain, end = (
            marker(one, vocabulary) for one in (START, CHANNEL, MESSAGE, CONSTRAIN, RETURN)
        )
        final = f'{channel} "final" (" "? {constrain} "json")? {message}'
        messages = [" ".join(marker(one, vocabulary) for one in self.reasoning)]
        if calls:
            messages.append(calls)
        if text is None:
            messages += (f'{channel} "commentary" {message}', final)
        elif text:
            messages.append(f"{final} {text} {end}")
        return f'({start} "assistant")? ({" | ".join(messages)})'


class _HarmonyParser(CallParser):
    """Parses the messages of one sequence."""

    def __init__(self, format_: HarmonyCalls, tools: Sequence[Tool], **options: Any) -> None:
        super().__init__(format_, tools, openings=(*format_.opening, *_ENDS), **options)
        self._has_header = False

    def _calls(self, opening: str) -> Reader:
        if opening.startswith(_RECIPIENT) and self._has_header:  # a text that mentions one
            raise Mismatch
        # The grammar has a header follow reasoning, so that a recipient may come first there too.
        self._has_header = not (opening == END and self._out.is_reasoning)
        while opening not in _ENDS:
            header = yield from self._header(opening)
            if not header:
                break
            to = re.search(rf"(?:\A|\s)to=({re.escape(_NAMESPACE)})?([^\s<]+)", header)
            self._out.is_reasoning = f"{CHANNEL}{_REASONING}" in header
            if to is None or not (to[1] or to[2] in self._tools):
                self._accept()
                return
            self._out.is_reasoning = False
            self._is_in_call = True
            name = self._checked_name(to[2])
            char = yield from self._next_but_space()
            self._chars.push_back()
            if char == "{":
                yield from self._json_call(name)
                opening = yield from self._one_of(*_ENDS, START, CHANNEL)
            else:  # no text is no arguments
                opening = yield from self._one_of(*_ENDS)
                self._begin(name, "{}")
        self._out.is_reasoning = False
        self._accept()

    def _header(self, opening: str) -> TextReader:
        """Reads to the marker before the text; returns the header without MARKs.

        What a marker in `_ENDS` ends is no header but text: it is output, and "" returned.
        """
        ends = {self._marker(one): one for one in (MESSAGE, *_ENDS)}
        header = opening
        while not (end := next(filter(header.endswith, ends), "")):
            header += yield from self._chars.next()
            is_long = len(header) > _MAX_HEADER_CHARS and "<" not in header[-len(MESSAGE) :]
            if is_long or header.endswith("\n"):
                raise Mismatch
        if ends[end] in _ENDS:
            self._out.say(header.removesuffix(end))
            return ""
        text = header.removesuffix(end).replace(MARK, "")
        if CHANNEL not in text:
            raise Mismatch
        return text


FORMATS = (
    HarmonyCalls(
        name="openai",
        aliases=("harmony",),
        opening=(CHANNEL, START, f"{_RECIPIENT}{_NAMESPACE}"),
        signs=((CHANNEL, START, CALL),),
        reasoning=(CHANNEL, _REASONING, MESSAGE),
        ends_of_reasoning=(*_ENDS, START, CHANNEL),
    ),
)

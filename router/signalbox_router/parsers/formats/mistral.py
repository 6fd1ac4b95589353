"""Calls of Mistral's models, after [TOOL_CALLS].

Those of 2024 write a JSON list after one marker, the later ones a marker before each call, its name
and its arguments, with an id between them in some.
"""

import secrets
from collections.abc import Sequence
from typing import Any

from signalbox_router.parsers.call_rules import arguments_rule, literal, marker, opening_rules
from signalbox_router.parsers.char_reader import Mismatch, Reader, json_object
from signalbox_router.parsers.json_calls import Call, JsonCallParser, JsonCalls
from signalbox_router.parsers.parser_output import Parser
from signalbox_router.prompt.chat.conversation import MAX_NAME_CHARS, Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

OPENING, ID, ARGUMENTS = "[TOOL_CALLS]", "[CALL_ID]", "[ARGS]"
_NUM_ID_CHARS = 9
_MAX_HEAD_CHARS = MAX_NAME_CHARS + len(ID) + 2 * MAX_NAME_CHARS + len(ARGUMENTS)


def make_id_of_nine() -> str:
    """Returns an id of nine characters: Mistral's templates refuse those of any other length."""
    return secrets.token_hex(5)[:_NUM_ID_CHARS]


class MistralCalls(JsonCalls):
    @property
    def markers(self) -> tuple[str, ...]:
        return (OPENING, ID, ARGUMENTS)

    def parser(self, tools: Sequence[Tool], **options: Any) -> Parser:
        return _Parser(self, tools, **options)

    def grammar(
        self, tools: Sequence[Tool], *, is_parallel: bool = True, vocabulary: Vocabulary
    ) -> str:
        if vocabulary.token_id(ARGUMENTS) is None:
            return super().grammar(tools, is_parallel=is_parallel, vocabulary=vocabulary)
        call_id, arguments = (marker(one, vocabulary) for one in (ID, ARGUMENTS))
        calls = " | ".join(f"call_{i}" for i in range(len(tools)))
        rules = [f"calls: ({calls}){'+' * is_parallel}"]
        rules += opening_rules(self.opening, self.markers, vocabulary)
        if vocabulary.token_id(ID) is not None:
            arguments = f"({call_id} /[a-zA-Z0-9]{{{_NUM_ID_CHARS}}}/)? {arguments}"
        for i, tool in enumerate(tools):
            rules.append(f"call_{i}: opening_0 {literal(tool.name)} {arguments} arguments_{i}")
            rules.append(arguments_rule(f"arguments_{i}", i, tool))
        return "\n".join(rules)


class _Parser(JsonCallParser):
    def _json_calls(self, char: str) -> Reader:
        return super()._json_calls(char) if char in "[{" else self._named_call(char)

    def _named_call(self, head: str) -> Reader:
        while (char := (yield from self._chars.next())) != "{":
            head += char
            if len(head) > _MAX_HEAD_CHARS:
                raise Mismatch
        head = head.rstrip().removesuffix(self._marker(ARGUMENTS)).rstrip()
        name, _, call_id = head.partition(self._marker(ID))
        name = self._checked_name(name.strip(), is_known=True)
        call = Call(name, call_id.strip() if call_id.strip().isalnum() else "")
        self._is_in_call = True
        yield from self._arguments(call, char)
        if not call.has_begun:
            self._begin(name, json_object(call.arguments or ""), call_id=call.id)
        self._accept()


FORMATS = (
    MistralCalls(
        name="mistral",
        opening=(OPENING,),
        is_list=True,
        signs=((OPENING,),),
        make_id=make_id_of_nine,
    ),
)

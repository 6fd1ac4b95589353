"""Rules in Lark that the grammars of tool formats share.

A schema stands in a rule and on a line of its own, because the service that compiles the rules
rewrites it there (`signalbox_contract.structured_output.grammar`).
"""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.schema.vocabulary import reference_to
from signalbox_router.params.structured_output_check import definition_of_tool
from signalbox_router.prompt.chat.conversation import Tool
from signalbox_router.prompt.tokenization.vocabulary import Vocabulary

_NO_PARAMETERS: Mapping[str, Any] = {"properties": {}, "additionalProperties": False}


def literal(text: str) -> str:
    """Returns a text as Lark writes it."""
    return json.dumps(text, ensure_ascii=False)


def marker(text: str, vocabulary: Vocabulary) -> str:
    """Returns a marker: its token, or the text where the vocabulary has none."""
    token_id = vocabulary.token_id(text)
    return literal(text) if token_id is None else f"<[{token_id}]>"


def written(text: str, markers: Iterable[str], vocabulary: Vocabulary) -> list[str]:
    """Returns the parts of a text with markers in it: tokens, and the text between them."""
    tokens = [one for one in markers if vocabulary.token_id(one) is not None]
    tokens.sort(key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, tokens))})", text) if tokens else [text]
    return [marker(part, vocabulary) if part in tokens else literal(part) for part in parts if part]


def opening_rules(
    openings: Iterable[str], markers: Iterable[str], vocabulary: Vocabulary
) -> list[str]:
    """Returns the rules `opening_N`, the texts that open calls.

    A grammar begins calls by these rules, so that free text can be put before them.
    """
    return [
        f"opening_{i}: {' '.join(written(text, markers, vocabulary))}"
        for i, text in enumerate(openings)
    ]


def repeated(rule: str, separator: str, *, is_parallel: bool) -> str:
    """Returns what matches a rule once, or more often with a separator where that is allowed."""
    return f"{rule} ({literal(separator)} {rule})*" if is_parallel else rule


def schema_rule(name: str, schema: Mapping[str, Any]) -> str:
    """Returns a rule for JSON that conforms to a schema."""
    return f"{name}: %json {json.dumps(schema)}"


def lark_rule(name: str, definition: str) -> str:
    """Returns a rule for a text of a client's grammar in Lark."""
    return f"{name}: %lark {json.dumps(definition)}"


def lark_of(tool: Tool) -> str:
    """Returns the grammar in Lark of a custom tool's input, or ""."""
    free_text = tool.free_text
    return free_text.definition if free_text is not None and free_text.syntax == "lark" else ""


def check_is_json(position: int, tool: Tool) -> None:
    """Raises InvalidArgument for a custom tool whose input a format that writes JSON cannot
    force."""
    if lark_of(tool):
        reason = "the model writes arguments as JSON, which a Lark grammar is not for; a regex is"
        raise InvalidArgument(f"tools[{position}].format", tool.name, reason=reason)


def arguments_rule(name: str, position: int, tool: Tool) -> str:
    """Returns a rule for a tool's arguments as a JSON object; see `arguments_schema`."""
    return schema_rule(name, arguments_schema(position, tool))


def call_rule(
    name: str,
    tools: Sequence[Tool],
    *,
    arguments_key: str,
    name_key: str = "name",
    number_key: str = "",
) -> str:
    """Returns a rule for calls as JSON objects, each of a name and its arguments.

    It is one schema, because what is text for one rule may not begin as JSON does in another.

    Args:
        number_key: key of the call's number, before its name; "" for none.
    """
    number = {number_key: {"type": "string", "pattern": "^(0|[1-9][0-9]{0,2})$"}}
    number = number if number_key else {}
    calls, definitions = [], dict[str, Any]()
    for position, tool in enumerate(tools):
        arguments = arguments_schema(position, tool)
        definitions |= arguments.pop("$defs", {})
        calls.append(
            {
                "type": "object",
                "properties": {**number, name_key: {"const": tool.name}, arguments_key: arguments},
                "required": [*number, name_key, arguments_key],
                "additionalProperties": False,
            }
        )
    return schema_rule(name, {"anyOf": calls, "$defs": definitions})


def arguments_schema(position: int, tool: Tool) -> dict[str, Any]:
    """Returns the schema of a tool's arguments, which are an object even if the tool does not
    require it.

    Args:
        position: the tool's, by which an error names its schema.
    """
    if not tool.strict:
        return {"type": "object"}
    check_is_json(position, tool)
    definition = definition_of_tool(position)
    reference = {"$ref": reference_to(definition)}
    return {"type": "object", **reference, "$defs": {definition: root_schema(definition, tool)}}


def root_schema(definition: str, tool: Tool) -> dict[str, Any]:
    """Returns a tool's parameters as a root of their own, where their references start."""
    parameters = dict(_NO_PARAMETERS if tool.parameters is None else tool.parameters)
    own = parameters.get("$id")
    if not isinstance(own, str) or own.startswith("#"):  # it opens no root
        parameters["$id"] = definition
    if isinstance(own, str) and own.startswith("#"):
        parameters.setdefault("$anchor", own[1:])
    return parameters

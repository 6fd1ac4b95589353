"""Arguments that formats write as raw text, each between markers of its own, as XML does.

A text stands there as it is, without the marker that ends it. Any other value is JSON, also where
the schema leaves the type open; there the parser takes what is no JSON as a text.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from signalbox_contract.errors import InvalidArgument
from signalbox_contract.structured_output.schema.patterns import plain_pattern
from signalbox_contract.structured_output.schema.references import flatten
from signalbox_contract.structured_output.schema.vocabulary import (
    TYPES,
    Budget,
    NotSupported,
    SchemaError,
    definition_of,
    reference_to,
    type_name,
    types_of,
    values_of,
)
from signalbox_router.params.structured_output_check import definition_of_tool
from signalbox_router.parsers.call_rules import lark_rule, literal, schema_rule
from signalbox_router.parsers.char_reader import no_constant
from signalbox_router.parsers.python_values import CONSTANTS, json_of_python
from signalbox_router.prompt.chat.conversation import Tool

TEXT = frozenset({"string"})
_MAX_STEPS = 1000
_NOT_IN_TEXT = ("not", "if")
"""Keywords that no regular expression of ours says."""
_OF_ALL_ARGUMENTS = (
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentRequired", "dependentSchemas",
    "minProperties", "maxProperties", "propertyNames", "patternProperties",
)  # fmt: skip
"""Keywords that a grammar of arguments one by one cannot enforce."""
_ANY_TEXT = "/(?s:.*)/"
_PARTS = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]?|.", re.DOTALL)
"""An escape, a class of characters or one character of a pattern."""


@dataclass(frozen=True)
class ArgumentSchemas:
    """The schemas of one tool's arguments."""

    properties: Mapping[str, Any]
    """The schema of each declared argument, by name."""
    others: Any
    """The schema of arguments that are not declared; False allows none."""
    required: frozenset[str]
    definitions: Mapping[str, Any]
    """The definitions that the schemas refer to."""

    @staticmethod
    def of(tool: Tool | None, *, is_enforced: bool) -> "ArgumentSchemas":
        """Returns the schemas of a tool's arguments; None is an unknown tool, with any arguments.

        As in closed schemas, there are no others where there are `properties`, even none, and
        nothing is said of others. Raises SchemaError for a schema that is to be enforced and
        cannot be.
        """
        if tool is None:
            return _ANYTHING
        if tool.parameters is None:
            return ArgumentSchemas({}, False, frozenset(), {})
        try:
            schema, definitions = flatten(dict(tool.parameters))
        except (SchemaError, RecursionError):
            if is_enforced:
                raise
            return _ANYTHING
        for keyword in _OF_ALL_ARGUMENTS if is_enforced else ():
            if keyword in schema:
                raise _not_supported(keyword, "all arguments")
        others = schema.get("additionalProperties", "properties" not in schema)
        properties = schema.get("properties") or {}
        required = frozenset(schema.get("required") or ())
        properties |= dict.fromkeys(sorted(required - properties.keys()), others)
        return ArgumentSchemas(properties, others, required, definitions)

    def types(self, key: str) -> frozenset[str]:
        """Returns the types that the schema of an argument allows."""
        return self.types_of(self.properties.get(key, self.others))

    def types_of(self, schema: Any) -> frozenset[str]:
        """Returns the types that a schema allows; all of them if it is too deep to tell."""
        try:
            return self._types(schema, Budget(_MAX_STEPS))
        except (SchemaError, RecursionError):
            return TYPES

    def _types(self, schema: Any, budget: Budget) -> frozenset[str]:
        budget.spend()
        if not isinstance(schema, dict):
            return TYPES
        types, values = types_of(schema), values_of(schema)
        if values is not None:
            types &= {type_name(value) for value in values}
        if "$ref" in schema:
            types &= self._types(self.definitions[definition_of(schema["$ref"])], budget)
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                parts = [self._types(part, budget) for part in schema[keyword]]
                types &= frozenset().union(*parts)
        for part in schema.get("allOf", ()):
            types &= self._types(part, budget)
        return types

    def document(self, schema: Any, position: int) -> Mapping[str, Any]:
        """Returns a schema with the definitions that it refers to.

        Args:
            position: the tool's among those of the grammar, by which an error names the schema.
        """
        own = definition_of_tool(position)
        needed = {own: schema}
        waiting = [schema]
        while waiting:
            found = re.findall(r'"\$ref": "#/\$defs/([^"]*)"', json.dumps(waiting.pop()))
            for name in found:
                if name in self.definitions and name not in needed:
                    needed[name] = self.definitions[name]
                    waiting.append(needed[name])
        return {"$ref": reference_to(own), "$defs": needed}

    def terms(self, schema: Any) -> list[str]:
        """Returns regular expressions in Lark; a text of the schema matches all of them.

        Raises SchemaError for a keyword that is not enforced.
        """
        return self._terms(schema, Budget(_MAX_STEPS))

    def _terms(self, schema: Any, budget: Budget) -> list[str]:
        budget.spend()
        if not isinstance(schema, dict):
            return []
        for keyword in _NOT_IN_TEXT:
            if keyword in schema:
                raise _not_supported(keyword, "a text")
        terms = []
        if (values := values_of(schema)) is not None:
            terms.append(_any_of([literal(one) for one in values if isinstance(one, str)]))
        least, most = schema.get("minLength", 0), schema.get("maxLength", "")
        if least or most != "":
            terms.append(f"/(?s:.{{{least},{most}}})/")
        if "pattern" in schema:
            terms.append(_pattern(schema["pattern"]))
        if "$ref" in schema:
            terms += self._terms(self.definitions[definition_of(schema["$ref"])], budget)
        for part in schema.get("allOf", ()):
            terms += self._terms(part, budget)
        for keyword in ("anyOf", "oneOf"):
            parts = [self._terms(part, budget) for part in schema.get(keyword, ())]
            if keyword == "oneOf" and not all(map(_lists_values, schema.get(keyword, ()))):
                raise _not_supported(keyword, "a text")
            if parts and all(parts):
                terms.append(_any_of([f"({' & '.join(part)})" for part in parts]))
        return terms


_ANYTHING = ArgumentSchemas({}, True, frozenset(), {})


def json_of(text: str, types: frozenset[str]) -> str:
    """Returns the JSON of an argument's text."""
    if types != TEXT:
        plain = text.strip()
        is_pythons = "string" not in types or plain in CONSTANTS
        for one in (plain, json_of_python(plain)) if is_pythons else (plain,):
            try:
                value = json.loads(one, strict=False, parse_constant=no_constant)
            except (ValueError, RecursionError):
                continue
            if type_name(value) in types or "string" not in types:
                return json.dumps(value, ensure_ascii=False)
    return json.dumps(text, ensure_ascii=False)


def has_odd_quotes(text: str) -> bool:
    """Returns whether JSON that ends behind a text is within a string, if it was not before it."""
    return len(re.findall(r'(?<!\\)(?:\\\\)*"', text)) % 2 == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ValueRules:
    """Writes the rules of the values of one tool's arguments."""

    schemas: ArgumentSchemas
    position: int
    """The tool's among those of the grammar."""
    end: Sequence[str]
    """The texts and tokens that end a value, in Lark."""
    stop: str
    """The tag in the first of `end`, if that is text; "" if it is a token."""
    is_free: bool = False
    """True if a value is any text."""
    lark: str = ""
    """A client's grammar of the values, if there is one."""

    def of(self, name: str, schema: Any) -> list[str]:
        """Returns rules for a value of a schema and the marker that ends it."""
        if self.lark:
            return [
                f"{name}: {name}_lark {' '.join(self.end)}",
                lark_rule(f"{name}_lark", self.lark),
            ]
        if not self.is_free and self.schemas.types_of(schema) != TEXT:
            rule = schema_rule(f"{name}_json", self.schemas.document(schema, self.position))
            return [f"{name}: {name}_json {' '.join(self.end)}", rule]
        terms = [] if self.is_free else self.schemas.terms(schema)
        return self._of_text(name, " & ".join([_ANY_TEXT, *terms]))

    def _of_text(self, name: str, pattern: str) -> list[str]:
        first, *others = self.end
        text = name.upper()
        rule = f"{text}: {pattern}"
        if not first.startswith('"'):
            return [f"{name}: {' '.join((text, *self.end))}", rule]
        if not self.stop:  # a text and the space before a token are one terminal, as it may end so
            return [f"{name}: {' '.join((text, *others))}", f"{text}: ({pattern}) {first}"]
        # The first end counts. Excluding it from the text instead takes llguidance beyond its
        # limits where the schema bounds the length.
        before, _, after = json.loads(first).partition(self.stop)
        rest = " ".join(([literal(after)] if after else []) + others)
        return [
            f"{name}: {name}_text {rest}",
            f"{name}_text[suffix={literal(before + self.stop)}]: {text}",
            rule,
        ]


PLAIN_NAME = "[A-Za-z_][A-Za-z0-9_]*"
"""Regular expression of the name of an argument that is not declared, in a list."""


def listed_arguments(
    position: int,
    schemas: ArgumentSchemas,
    *,
    is_name: Callable[[str], bool],
    sign: str,
    separator: str,
    argument: Callable[[str, str, Any], Iterable[str]],
) -> Iterator[str]:
    """Yields rules for arguments in a list: `first_P_J` are those from argument J on, and
    `rest_P_J` too, after one that has been written.

    Args:
        position: the tool's, P in names of rules.
        is_name: says whether the format can write the name of a declared argument.
        sign: what follows the name.
        separator: what stands between arguments.
        argument: yields the rules that begin with `argument_P_J`, of P_J, its key and its schema.

    Raises SchemaError for a name that it cannot write.
    """
    for j, (name, schema) in enumerate(schemas.properties.items()):
        if not is_name(name):
            raise SchemaError(f"the format of the model's calls has no argument named {name!r}")
        here, later = f"{position}_{j}", f"{position}_{j + 1}"
        others = "" if name in schemas.required else " | {}_" + later
        for kind, before in (("first", ""), ("rest", f"{literal(separator)} ")):
            rest = others.format(kind)
            yield f"{kind}_{here}: {before}argument_{here} rest_{later}{rest}"
        yield from argument(here, name, schema)
    yield from _unlisted_arguments(position, schemas, sign=sign, separator=separator)


def _unlisted_arguments(
    position: int, schemas: ArgumentSchemas, *, sign: str, separator: str
) -> Iterator[str]:
    """Yields rules for the arguments that are not declared, which come last."""
    last = f"{position}_{len(schemas.properties)}"
    if schemas.others is False:
        yield f'first_{last}: ""'
        yield f'rest_{last}: ""'
        return
    again = f"({literal(separator)} other_{position})*"
    yield f"first_{last}: (other_{position} {again})?"
    yield f"rest_{last}: {again}"
    yield f"other_{position}: OTHER_{position} others_{position}"
    declared = "".join(f" & ~{literal(name)}" for name in schemas.properties)
    yield f"OTHER_{position}: (/{PLAIN_NAME}/{declared}) {literal(sign)}"
    yield schema_rule(f"others_{position}", schemas.document(schemas.others, position))


def refused(position: int, tool: Tool, reason: str) -> InvalidArgument:
    """Returns the error for a tool whose calls a format cannot write.

    Args:
        position: the tool's among those of the grammar.
    """
    return InvalidArgument(f"tools[{position}].parameters", tool.name, reason=reason)


def _not_supported(keyword: str, of: str) -> SchemaError:
    return NotSupported(keyword, f"of {of} is not supported in the format of the model's calls")


def _lists_values(schema: Any) -> bool:
    return isinstance(schema, dict) and bool(schema.keys() & {"const", "enum"})


def _any_of(terms: Sequence[str]) -> str:
    return f"({' | '.join(terms)})" if terms else r"/[^\s\S]/"


def _pattern(pattern: str) -> str:
    """Returns a regular expression of the texts in which a pattern is found.

    Anchors are taken around each alternative; llguidance refuses others.
    """
    branches = []
    for inner in _branches(pattern):
        begin = end = "(?s:.*)"
        if inner.startswith("^"):
            inner, begin = inner[1:], ""
        if re.search(r"(?<!\\)(?:\\\\)*\$\Z", inner):
            inner, end = inner[:-1], ""
        branches.append(f"{begin}(?:{_escaped(plain_pattern(inner))}){end}")
    return f"/{'|'.join(branches)}/"


def _branches(pattern: str) -> Iterator[str]:
    """Yields the alternatives of a pattern, without those in groups."""
    begin = depth = 0
    for found in _PARTS.finditer(pattern):
        depth += (found[0] == "(") - (found[0] == ")")
        if found[0] == "|" and depth == 0:
            yield pattern[begin : found.start()]
            begin = found.end()
    yield pattern[begin:]


def _escaped(pattern: str) -> str:
    """Returns a regular expression as it stands between the slashes of Lark."""
    return re.sub(r"(\\.)|/", lambda found: found[1] or r"\/", pattern).replace("\n", r"\n")

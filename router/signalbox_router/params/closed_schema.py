"""Closes the objects of a JSON schema that declare properties and do not mention additional ones.

A model under an open schema may go on adding keys until its tokens run out, so such an object gets
`additionalProperties: false`. Objects to which several schemas apply (`allOf`, `if`, `$ref` or
`anyOf` beside `properties`) stay open, because parts that are closed one by one may contradict each
other. Alternatives are closed where nothing else applies; those of a `oneOf` only beside a
`discriminator`, since a value that matches two open ones may match a single closed one. A part's
definition stays open wherever it is used. References are brought to `$defs` first.
"""

import json
from collections.abc import Collection, Iterator
from typing import Any

from signalbox_contract.structured_output.schema.references import flatten
from signalbox_contract.structured_output.schema.vocabulary import (
    IN_LISTS,
    IN_MAPS,
    Schema,
    definition_of,
)

_ALONE = ("additionalProperties", "items", "unevaluatedItems", "if", "then", "else")
"""Keywords with one schema whose objects may be closed; the others say what a value is not, or what
it has among others."""
_OF_OBJECTS = frozenset({
    "properties", "patternProperties", "additionalProperties", "unevaluatedProperties", "required",
    "minProperties", "dependentRequired", "dependentSchemas", "allOf", "anyOf", "oneOf", "if",
    "not", "$ref", "enum", "const",
})  # fmt: skip
"""Keywords that say something about the keys of an object."""


def close_schema(text: str) -> str:
    """Returns the schema with its objects closed; what is not a schema is returned unchanged."""
    try:
        root = flatten(json.loads(text)).document()
        return json.dumps(root) if isinstance(root, dict) and _close(root) else text
    except (ValueError, RecursionError):
        return text


def _close(root: Schema) -> bool:
    """Closes objects in place; returns whether there are any."""
    parts: set[int] = set()
    for schema in _walk(root):
        if not _applies_alone(schema):
            for part in _in_place(schema, root):
                _add_part(part, parts, root)
    objects = [schema for schema in _walk(root, without=parts) if _is_closable(schema)]
    for schema in objects:
        schema["additionalProperties"] = False
    return bool(objects)


def _walk(schema: Schema, *, without: Collection[int] = ()) -> Iterator[Schema]:
    """Yields a schema and all below it, except those `without` and what is below them."""
    if id(schema) in without:
        return
    yield schema
    children = [schema[key] for key in _ALONE if key in schema]
    for key in IN_LISTS:
        children += _as_list(schema.get(key))
    for key in IN_MAPS:
        children += _as_dict(schema.get(key)).values()
    for child in children:
        if isinstance(child, dict):
            yield from _walk(child, without=without)


def _applies_alone(schema: Schema) -> bool:
    """Returns whether what applies to the same value as this schema is all that says its keys."""
    match [*(schema.keys() & _OF_OBJECTS)]:
        case ["anyOf"] | ["$ref"]:
            return True
        case ["oneOf"]:
            return "discriminator" in schema
        case ["allOf"]:
            return len(_as_list(schema["allOf"])) == 1
        case _:
            return False


def _in_place(schema: Schema, root: Schema) -> Iterator[Any]:
    """Yields the schemas that apply to the same value."""
    for key in ("allOf", "anyOf", "oneOf"):
        yield from _as_list(schema.get(key))
    yield from (schema[key] for key in ("if", "then", "else", "not") if key in schema)
    yield from _as_dict(schema.get("dependentSchemas")).values()
    if "$ref" in schema:
        yield root["$defs"][definition_of(schema["$ref"])]


def _add_part(schema: Any, parts: set[int], root: Schema) -> None:
    if isinstance(schema, dict) and id(schema) not in parts:
        parts.add(id(schema))
        for part in _in_place(schema, root):
            _add_part(part, parts, root)


def _is_closable(schema: Schema) -> bool:
    said = schema.keys() & _OF_OBJECTS
    names = schema.get("properties")
    return (
        isinstance(names, dict)
        and said <= {"properties", "patternProperties", "required"}
        and all(
            isinstance(name, str) and name in names for name in _as_list(schema.get("required"))
        )
    )


def _as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

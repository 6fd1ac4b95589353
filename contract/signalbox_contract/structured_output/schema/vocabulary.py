"""Keywords, types, references, faults and a budget, which all modules of this folder share."""

from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]

TYPES = frozenset({"null", "boolean", "number", "string", "array", "object"})
IN_MAPS = frozenset({
    "properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions",
})  # fmt: skip
IN_LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems", "items"})
ALONE = frozenset({
    "items", "additionalItems", "unevaluatedItems", "contains", "additionalProperties",
    "unevaluatedProperties", "propertyNames", "not", "if", "then", "else",
})  # fmt: skip
"""Keywords whose values are schemas: by name in an object, in a list, or one."""
ANYTHING: tuple[Any, ...] = (True, {})
"""Schemas that every value conforms to."""
LOW_BOUNDS = ("minimum", "exclusiveMinimum")
HIGH_BOUNDS = ("maximum", "exclusiveMaximum")

_OF_TYPES = {
    "string": ("minLength", "maxLength", "pattern", "format"),
    "number": (*LOW_BOUNDS, *HIGH_BOUNDS, "multipleOf"),
    "array": (
        "items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
        "maxContains", "unevaluatedItems",
    ),
    "object": (
        "properties", "patternProperties", "additionalProperties", "required", "minProperties",
        "maxProperties", "propertyNames", "dependentRequired", "dependentSchemas",
        "unevaluatedProperties",
    ),
}  # fmt: skip
TYPE_OF = {keyword: name for name, keywords in _OF_TYPES.items() for keyword in keywords}
"""The type of values that a keyword is about; the others are about any."""


class SchemaError(ValueError):
    """The schema is none, or nothing that llguidance compiles says the same."""


class NotSupported(SchemaError):
    """A keyword has no exact form for llguidance."""

    def __init__(self, keyword: str, reason: str = "is not supported") -> None:
        super().__init__(f'"{keyword}" {reason}')


class Budget:
    """Bounds the work on one schema, whose size may be exponential once it is rewritten."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def spend(self, steps: int = 1) -> None:
        """Takes steps. Raises SchemaError if none are left."""
        self._steps -= steps
        if self._steps < 0:
            raise SchemaError("it takes too many steps to check")


def reference_to(definition: str) -> str:
    """Returns the value of a "$ref" to a definition."""
    return f"#/$defs/{definition}"


def definition_of(reference: str) -> str:
    """Returns the name of the definition that `reference_to` refers to."""
    return reference.rpartition("/")[2]


def map_children(schema: Schema, change: Callable[[Any], Any]) -> Schema:
    """Returns a copy of a schema with each schema below it changed."""
    return {key: _changed(key, value, change) for key, value in schema.items()}


def _changed(key: str, value: Any, change: Callable[[Any], Any]) -> Any:
    if key in IN_MAPS and isinstance(value, dict):
        return {name: one if isinstance(one, list) else change(one) for name, one in value.items()}
    if key in IN_LISTS and isinstance(value, list):
        return [change(one) for one in value]
    return change(value) if key in ALONE else value


def types_of(schema: Schema) -> frozenset[str]:
    """Returns the types that the keyword "type" allows; whole numbers count as numbers."""
    named = named_types(schema)
    return TYPES if named is None else frozenset("number" if t == "integer" else t for t in named)


def named_types(schema: Schema) -> list[str] | None:
    """Returns the value of "type" as a list, or None if the schema has none."""
    named = schema.get("type")
    if named is None:
        return None
    listed = named if isinstance(named, list) else [named]
    if not all(isinstance(one, str) and (one in TYPES or one == "integer") for one in listed):
        raise SchemaError('"type" must be the name of a type, or a list of names')
    return listed


def type_name(value: Any) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int() | float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def values_of(schema: Schema) -> list[Any] | None:
    """Returns the values that "enum" and "const" list, or None if there is neither keyword."""
    lists = []
    if "const" in schema:
        lists.append([schema["const"]])
    if "enum" in schema:
        if not isinstance(schema["enum"], list):
            raise SchemaError('"enum" must be a list')
        lists.append(schema["enum"])
    if len(lists) == 2:
        keys = {value_key(value) for value in lists[1]}
        return [value for value in lists[0] if value_key(value) in keys]
    return lists[0] if lists else None


def value_key(value: Any) -> Any:
    """Returns what two JSON values have in common if JSON Schema calls them equal."""
    match value:
        case bool() | None:
            return (value,)
        case list():
            return ("array", *map(value_key, value))
        case dict():
            return ("object", frozenset((name, value_key(one)) for name, one in value.items()))
    return value  # 1 and 1.0 are equal in Python, too

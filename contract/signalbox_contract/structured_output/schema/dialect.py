"""Writes each keyword of a schema in the form that draft 2020-12 gives it, and checks its value."""

import math
import re
from collections.abc import Callable
from typing import Any

from signalbox_contract.structured_output.schema.vocabulary import (
    HIGH_BOUNDS,
    IN_LISTS,
    LOW_BOUNDS,
    Schema,
    SchemaError,
    named_types,
)

_LEGACY = re.compile(r"draft-0[1-7]/|draft/2019-09/")
"""Dialects whose arrays have "items" and "additionalItems" in the place of "prefixItems"."""
_ALL_KEYS = frozenset({"", ".*", "^.*", ".*$", "^"})
BEYOND_ALL = 10**400
"""Stands for a bound that is infinite as a floating-point number."""


def in_2020(schema: Schema, dialect: str) -> Schema:
    """Returns a schema of the same meaning. Raises SchemaError if it is none.

    Args:
        dialect: the URI in "$schema", or "".
    """
    result = {key: _checked(key, value) for key, value in schema.items()}
    named_types(result)
    _rename_items(result, is_legacy=_LEGACY.search(dialect) is not None)
    for bound, exclusive in (LOW_BOUNDS, HIGH_BOUNDS):
        if isinstance(result.get(exclusive), bool) and result.pop(exclusive) and bound in result:
            result[exclusive] = result.pop(bound)
    _limit(result)
    _split_dependencies(result)
    _replace_pattern_of_all(result)
    return result


def _rename_items(schema: Schema, *, is_legacy: bool) -> None:
    if is_legacy:
        schema.pop("prefixItems", None)
    rest = schema.pop("additionalItems", True)  # says nothing unless "items" is a list
    if isinstance(schema.get("items"), list):
        if "prefixItems" in schema:
            raise SchemaError('"items" must be a schema beside "prefixItems"')
        schema["prefixItems"], schema["items"] = schema["items"], rest


def _limit(schema: Schema) -> None:
    """Replaces infinite bounds; on its open side such a bound says nothing."""
    for key in (*LOW_BOUNDS, *HIGH_BOUNDS):
        value = schema.get(key, 0)
        if abs(value) == math.inf:
            if (value > 0) == (key in HIGH_BOUNDS):
                del schema[key]
            else:
                schema[key] = BEYOND_ALL if value > 0 else -BEYOND_ALL


def _replace_pattern_of_all(schema: Schema) -> None:
    """Replaces a single pattern that every key matches by a schema of all other keys."""
    patterns = schema.get("patternProperties", {})
    if len(patterns) == 1 and _ALL_KEYS.issuperset(patterns):
        ((_, of_all),) = schema.pop("patternProperties").items()
        properties = schema.get("properties", {})
        if properties:
            both = {name: {"allOf": [one, of_all]} for name, one in properties.items()}
            schema["properties"] = both
        schema["additionalProperties"] = of_all


def _split_dependencies(schema: Schema) -> None:
    """Replaces "dependencies" by the two keywords that came after it."""
    for name, needed in schema.pop("dependencies", {}).items():
        if isinstance(needed, list):
            names = schema.setdefault("dependentRequired", {})
            names[name] = [*names.get(name, ()), *_names("dependencies", needed)]
        else:
            schemas = schema.setdefault("dependentSchemas", {})
            schemas[name] = {"allOf": [schemas[name], needed]} if name in schemas else needed


def _checked(key: str, value: Any) -> Any:
    if key in IN_LISTS and isinstance(value, list):
        return value
    check = _CHECKS.get(key)
    return value if check is None else check(key, value)


def _count(key: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0 or value % 1:
        raise SchemaError(f'"{key}" must be a whole number of at least 0')
    return int(value)


def _number(key: str, value: Any) -> int | float:
    if isinstance(value, bool) or not isinstance(value, int | float) or math.isnan(value):
        raise SchemaError(f'"{key}" must be a number')
    return value


def _exclusive(key: str, value: Any) -> int | float | bool:
    return value if isinstance(value, bool) else _number(key, value)


def _map(key: str, value: Any) -> Schema:
    if not isinstance(value, dict):
        raise SchemaError(f'"{key}" must be an object')
    return dict(value)


def _name_lists(key: str, value: Any) -> Schema:
    return {name: _names(key, names) for name, names in _map(key, value).items()}


def _names(key: str, value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise SchemaError(f'"{key}" must be a list of strings')
    return [*dict.fromkeys(value)]


def _list(key: str, value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise SchemaError(f'"{key}" must be a list')
    return value


def _string(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise SchemaError(f'"{key}" must be a string')
    return value


def _switch(key: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise SchemaError(f'"{key}" must be true or false')
    return value


_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
    "minContains", "maxContains",
)  # fmt: skip
_CHECKS: dict[str, Callable[[str, Any], Any]] = {
    **dict.fromkeys(_COUNTS, _count),
    **dict.fromkeys(("minimum", "maximum", "multipleOf"), _number),
    **dict.fromkeys(("exclusiveMinimum", "exclusiveMaximum"), _exclusive),
    **dict.fromkeys(
        (
            "properties",
            "patternProperties",
            "dependencies",
            "dependentSchemas",
            "$defs",
            "definitions",
        ),
        _map,
    ),
    **dict.fromkeys(("allOf", "anyOf", "oneOf", "prefixItems", "enum"), _list),
    "dependentRequired": _name_lists,
    "required": _names,
    "pattern": _string,
    "format": _string,
    "uniqueItems": _switch,
}

"""Turns "propertyNames" into objects that are closed, which llguidance compiles."""

import re
from itertools import combinations
from typing import Any

from signalbox_contract.structured_output.schema.disjointness import Disjointness
from signalbox_contract.structured_output.schema.vocabulary import (
    NotSupported,
    Schema,
    types_of,
    value_key,
    values_of,
)

_CONSTRAINING = frozenset({
    "pattern", "minLength", "maxLength", "enum", "const", "type", "anyOf", "oneOf", "not", "if",
})  # fmt: skip


def closed_objects(names: Any, disjointness: Disjointness) -> list[Any]:
    """Returns schemas that together allow the keys that conform to a schema, and no others."""
    return [_closed(part, disjointness) for part in disjointness.conjuncts(names)]


def _closed(part: Schema, disjointness: Disjointness) -> Any:
    if not part.keys() & (_CONSTRAINING - {"type"}) and "string" in types_of(part):
        return True
    allowed = _allowed(part, disjointness)
    if isinstance(allowed, str):
        return {"patternProperties": {allowed: True}, "additionalProperties": False}
    return {"properties": dict.fromkeys(allowed, True), "additionalProperties": False}


def _allowed(part: Schema, disjointness: Disjointness) -> list[str] | str:
    """Returns the keys that one schema lists, or a pattern that matches them."""
    if "string" not in types_of(part):
        return []
    values = values_of(part)
    said = part.keys() & _CONSTRAINING - {"type"}
    if values is not None and said <= {"enum", "const"}:
        return [value for value in values if isinstance(value, str)]
    if said == {"pattern"}:
        return str(part["pattern"])
    if said and said <= {"minLength", "maxLength"}:
        return rf"^[\s\S]{{{part.get('minLength', 0)},{part.get('maxLength', '')}}}$"
    if len(said) == 1 and (options := part.get("anyOf", part.get("oneOf"))):
        pairs = combinations(options, 2) if "oneOf" in part else ()
        if not any(disjointness.overlap(*pair, types=["string"]) for pair in pairs):
            return _united(options, disjointness)
    raise NotSupported("propertyNames", f"is not supported with {' and '.join(sorted(said))}")


def _united(options: list[Any], disjointness: Disjointness) -> list[str] | str:
    lists: list[str] = []
    patterns: list[str] = []
    for option in options:
        parts = disjointness.conjuncts(option)
        if len(parts) != 1:
            raise NotSupported("propertyNames", "is not supported with several schemas for a key")
        allowed = _allowed(parts[0], disjointness)
        if isinstance(allowed, str):
            patterns.append(f"(?:{allowed})")
        else:
            lists += allowed
    if not patterns:
        return [*{value_key(name): name for name in lists}]
    listed = "|".join(map(re.escape, lists))
    return "|".join([*patterns, *([f"^(?:{listed})$"] if lists else [])])

"""Finds out if two schemas of one dialect have no value in common, as far as that shows.

Only what is certain counts: a value may always be in both schemas if nothing here rules it out.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from math import inf
from typing import Any

from llguidance import LLMatcher

from signalbox_contract.structured_output.schema.dialect import BEYOND_ALL
from signalbox_contract.structured_output.schema.patterns import plain_pattern
from signalbox_contract.structured_output.schema.vocabulary import (
    HIGH_BOUNDS,
    LOW_BOUNDS,
    TYPES,
    Budget,
    Schema,
    definition_of,
    type_name,
    types_of,
    value_key,
    values_of,
)

_MAX_DEPTH = 24
_MAX_POSITIONS = 8
_STEPS_OF_PATTERNS = 50
"""Steps that count for a comparison of patterns, which takes about as long."""
_OF_STRINGS = ("const", "enum", "pattern", "minLength", "maxLength")


class Disjointness:
    """Compares schemas whose references are to these definitions."""

    def __init__(self, definitions: Mapping[str, Any], budget: Budget) -> None:
        self._definitions = definitions
        self._budget = budget
        self._no_strings: dict[str, bool] = {}

    def resolve(self, reference: str) -> Any:
        """Returns the definition that a reference is to."""
        return self._definitions[definition_of(reference)]

    def conjuncts(self, schema: Any) -> list[Schema]:
        """Returns schemas that all apply to a value of a schema: itself and what it includes."""
        found: list[Schema] = []
        waiting, seen = [schema], set()
        while waiting:
            one = waiting.pop()
            if one is False:
                return [{"enum": []}]
            if not isinstance(one, dict) or id(one) in seen:
                continue
            seen.add(id(one))
            found.append(one)
            waiting += one.get("allOf", [])
            if "$ref" in one:
                waiting.append(self.resolve(one["$ref"]))
            values = values_of(one)
            if values is not None and len(values) == 1 and isinstance(values[0], dict):
                found.append(object_of(values[0]))
        return found

    def overlap(
        self, one: Any, other: Any, *, types: Iterable[str] = TYPES, depth: int = 0
    ) -> frozenset[str]:
        """Returns the types, of these, whose values may be in both schemas."""
        self._budget.spend()
        sides = (self.conjuncts(one), self.conjuncts(other))
        common = frozenset(types)
        for conjunct in (*sides[0], *sides[1]):
            common &= allowed_types(conjunct)
        if depth > _MAX_DEPTH:
            return common
        common -= {name for name in common if self._differ(name, *sides, depth=depth)}
        for side, against in ((sides[0], other), (sides[1], one)):
            for options in _alternatives(side):
                if common:
                    common = frozenset[str]().union(
                        *(
                            self.overlap(option, against, types=common, depth=depth + 1)
                            for option in options
                        )
                    )
        return common

    def _differ(self, name: str, one: list[Schema], other: list[Schema], *, depth: int) -> bool:
        """Returns True if no value of one type is in both schemas."""
        keys = [_value_keys(side, name) for side in (one, other)]
        if keys[0] is not None and keys[1] is not None and not keys[0] & keys[1]:
            return True
        both = [*one, *other]
        match name:
            case "number":
                return _range_is_empty(both)
            case "string":
                return self._no_string(both)
            case "array":
                return _counts_contradict(both, "minItems", "maxItems") or self._items_differ(
                    one, other, depth
                )
            case "object":
                return _counts_contradict(
                    both, "minProperties", "maxProperties"
                ) or self._properties_differ(one, other, depth)
        return False

    def _no_string(self, parts: list[Schema]) -> bool:
        """Returns True if no string conforms; lengths and patterns are compared by llguidance."""
        said = [{key: one[key] for key in _OF_STRINGS if key in one} for one in parts]
        said = [one for one in said if one]
        if len(said) < 2 or not any("pattern" in one for one in said):
            return _counts_contradict(parts, "minLength", "maxLength")
        key = json.dumps(said)
        if key not in self._no_strings:
            self._budget.spend(_STEPS_OF_PATTERNS)
            grammar = LLMatcher.grammar_from_json_schema(
                json.dumps({"type": "string", "allOf": said})
            )
            fault = LLMatcher.validate_grammar(grammar)
            self._no_strings[key] = str(fault).startswith("Unsatisfiable")
        return self._no_strings[key]

    def _items_differ(self, one: list[Schema], other: list[Schema], depth: int) -> bool:
        count = min(max(part.get("minItems", 0) for part in (*one, *other)), _MAX_POSITIONS)
        return any(
            not self.overlap(_item(one, i), _item(other, i), depth=depth + 1)
            for i in range(int(count))
        )

    def _properties_differ(self, one: list[Schema], other: list[Schema], depth: int) -> bool:
        names = {name for part in (*one, *other) for name in part.get("required", ())}
        return any(
            not self.overlap(
                {"allOf": self.property_of(one, name)},
                {"allOf": self.property_of(other, name)},
                depth=depth + 1,
            )
            for name in sorted(names)
        )

    def property_of(self, parts: Sequence[Schema], name: str) -> list[Any]:
        """Returns schemas that the value of a property conforms to."""
        schemas: list[Any] = []
        for part in parts:
            patterns = part.get("patternProperties", {})
            matching = [one for text, one in patterns.items() if self.matches(text, name)]
            if name in part.get("properties", {}):
                schemas.append(part["properties"][name])
            elif not matching:
                schemas.append(part.get("additionalProperties", True))
            schemas += matching
        return schemas

    def matches(self, pattern: str, text: str) -> bool:
        return not self._no_string([{"pattern": plain_pattern(pattern)}, {"enum": [text]}])


def object_of(value: Mapping[str, Any]) -> Schema:
    """Returns a schema of one object alone."""
    return {
        "type": "object",
        "properties": {name: {"const": one} for name, one in value.items()},
        "required": [*value],
        "additionalProperties": False,
    }


def allowed_types(schema: Schema) -> frozenset[str]:
    """Returns the types of the values that one schema allows."""
    values = values_of(schema)
    types = types_of(schema)
    return types if values is None else types & {type_name(value) for value in values}


def _value_keys(parts: list[Schema], name: str) -> set[Any] | None:
    """Returns the listed values of one type, or None if they are not listed."""
    sets = [
        {value_key(value) for value in values if type_name(value) == name}
        for values in map(values_of, parts)
        if values is not None
    ]
    return set.intersection(*sets) if sets else None


def _alternatives(parts: list[Schema]) -> Iterator[list[Any]]:
    for part in parts:
        for keyword in ("anyOf", "oneOf"):
            if part.get(keyword):
                yield part[keyword]


def _counts_contradict(parts: list[Schema], least: str, most: str) -> bool:
    return bool(
        max(part.get(least, 0) for part in parts) > min(part.get(most, inf) for part in parts)
    )


def _range_is_empty(parts: list[Schema]) -> bool:
    low = max(
        (Fraction(part[key]), key == "exclusiveMinimum")
        for part in ({"minimum": -BEYOND_ALL}, *parts)
        for key in LOW_BOUNDS
        if key in part
    )
    high = min(
        (Fraction(part[key]), key != "exclusiveMaximum")
        for part in ({"maximum": BEYOND_ALL}, *parts)
        for key in HIGH_BOUNDS
        if key in part
    )
    return low[0] > high[0] or (low[0] == high[0] and (low[1] or not high[1]))


def _item(parts: list[Schema], position: int) -> Any:
    schemas = []
    for part in parts:
        prefix = part.get("prefixItems", [])
        schemas.append(prefix[position] if position < len(prefix) else part.get("items", True))
    return {"allOf": schemas}

"""Writes down what does not conform to a schema, with no keyword that negates."""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

from signalbox_contract.structured_output.schema.disjointness import (
    Disjointness,
    allowed_types,
    object_of,
)
from signalbox_contract.structured_output.schema.patterns import pattern_of_others
from signalbox_contract.structured_output.schema.vocabulary import (
    ANYTHING,
    TYPE_OF,
    TYPES,
    Budget,
    NotSupported,
    Schema,
    named_types,
    type_name,
    types_of,
    value_key,
    values_of,
)

_COUNTS = {
    "minLength": ("string", "maxLength", -1), "maxLength": ("string", "minLength", 1),
    "minItems": ("array", "maxItems", -1), "maxItems": ("array", "minItems", 1),
    "minProperties": ("object", "maxProperties", -1),
    "maxProperties": ("object", "minProperties", 1),
}  # fmt: skip
_BOUNDS = {
    "minimum": "exclusiveMaximum", "exclusiveMinimum": "maximum",
    "maximum": "exclusiveMinimum", "exclusiveMaximum": "minimum",
}  # fmt: skip
_NEVER = frozenset({
    "pattern", "multipleOf", "uniqueItems", "contains", "propertyNames", "unevaluatedItems",
    "unevaluatedProperties", "items", "prefixItems", "patternProperties", "dependentSchemas",
})  # fmt: skip
_DEPENDENT = frozenset({
    "additionalProperties", "contains", "if", "not", "unevaluatedItems", "unevaluatedProperties",
})  # fmt: skip
"""Keywords that mean something else beside others, or that are negated in their own way."""


class Negation:
    """Negates schemas, each beside others that apply to the same value.

    Args:
        exclusive: returns the alternatives of a "oneOf" that exclude each other.
    """

    def __init__(
        self,
        budget: Budget,
        disjointness: Disjointness,
        *,
        exclusive: Callable[[Schema], list[Any]],
    ) -> None:
        self._budget = budget
        self._disjointness = disjointness
        self._exclusive = exclusive
        self._within: list[str] = []

    def of(
        self, schema: Any, types: Collection[str] = TYPES, *, beside: Sequence[Schema] = ()
    ) -> Any:
        """Returns a schema of the values that do not conform. Raises NotSupported.

        Args:
            types: the types of all values that the result is applied to.
            beside: schemas that all these values conform to.
        """
        self._budget.spend()
        if isinstance(schema, bool):
            return not schema
        ways: list[Any] = []
        for keyword in schema:
            if TYPE_OF.get(keyword, "") in ("", *types) and not _is_said(keyword, schema, beside):
                ways += self._ways(keyword, schema, types, beside)
        return _any_of(ways)

    def _ways(
        self, keyword: str, schema: Schema, types: Collection[str], beside: Sequence[Schema]
    ) -> list[Any]:
        """Returns the ways in which a value may violate one keyword."""
        value, negated = schema[keyword], partial(self.of, types=types, beside=beside)
        if keyword in _COUNTS:
            name, opposite, step = _COUNTS[keyword]
            return [{"type": name, opposite: value + step}] if value + step >= 0 else []
        if keyword in _BOUNDS:
            return [{"type": "number", _BOUNDS[keyword]: value}]
        match keyword:
            case "type":
                return _other_types(schema, types, beside)
            case "const" | "enum":
                return self._other_values(values_of({keyword: value}) or [], types, beside)
            case "required":
                return [{"type": "object", "properties": {name: False}} for name in value]
            case "properties":
                return [way for name in value for way in self._violated(name, value[name], beside)]
            case "additionalProperties" if value not in ANYTHING:
                return self._ways_of_more_keys(schema, beside)
            case "allOf":
                return [negated(one) for one in value]
            case "anyOf":
                return [{"allOf": [negated(one) for one in value]}]
            case "oneOf":
                return [{"allOf": [negated(one) for one in self._exclusive(schema)]}]
            case "not":
                return [value]
            case "if":
                return [
                    {"allOf": [value, negated(schema.get("then", True))]},
                    {"allOf": [negated(value), negated(schema.get("else", True))]},
                ]
            case "dependentRequired":
                return _ways_of_dependence(value)
            case "$ref":
                return [self._of_reference(value, types, beside)]
        if keyword in _NEVER and not _says_nothing(keyword, value):
            raise NotSupported(keyword, "cannot be negated")
        return []

    def _violated(self, name: str, schema: Any, beside: Sequence[Schema]) -> list[Any]:
        """Returns at most one schema: of objects with a property that violates its own."""
        known = self._disjointness.property_of(beside, name)
        if value_key(schema) in map(value_key, known):
            return []
        parts = self._disjointness.conjuncts({"allOf": known})
        types = TYPES.intersection(*map(allowed_types, parts))
        violation = self.of(schema, types, beside=parts) if types else False
        if violation is False:
            return []
        return [{"type": "object", "required": [name], "properties": {name: violation}}]

    def _ways_of_more_keys(self, schema: Schema, beside: Sequence[Schema]) -> list[Any]:
        keys = next(filter(None, map(_keys_of, beside)), None)
        if keys is None or schema.get("patternProperties"):
            raise NotSupported("additionalProperties", "cannot be negated")
        more = [name for name in keys if name not in schema.get("properties", {})]
        value = schema["additionalProperties"]
        return [way for name in more for way in self._violated(name, value, beside)]

    def _other_values(
        self, values: list[Any], types: Collection[str], beside: Sequence[Schema]
    ) -> list[Any]:
        """Returns schemas of all values of these types but the listed ones."""
        of_type = {name: [one for one in values if type_name(one) == name] for name in types}
        ways: list[Any] = []
        if unlisted := sorted(name for name in types if not of_type[name]):
            ways.append({"type": unlisted})
        for name in types:
            if len(of_type[name]) == 1 and name == "boolean":
                ways.append({"const": not of_type[name][0]})
            elif of_type[name] and name == "string":
                ways.append({"type": name, "pattern": pattern_of_others(of_type[name])})
            elif of_type[name] and name == "number":
                ends = [-math.inf, *sorted(set(of_type[name])), math.inf]
                ways.append({"anyOf": [_between(low, high) for low, high in pairwise(ends)]})
            elif of_type[name] == [[]]:
                ways.append({"type": name, "minItems": 1})
            elif len(of_type[name]) == 1 and name == "object":
                other = self.of(object_of(of_type[name][0]), [name], beside=beside)
                ways.append({"type": name, "allOf": [other]})
            elif of_type[name] and name in ("array", "object"):
                raise NotSupported("enum", f"of an {name} cannot be negated")
        return ways

    def _of_reference(
        self, reference: str, types: Collection[str], beside: Sequence[Schema]
    ) -> Any:
        if reference in self._within:
            raise NotSupported("$ref", "within itself cannot be negated")
        self._within.append(reference)
        negated = self.of(self._disjointness.resolve(reference), types, beside=beside)
        self._within.pop()
        return negated


def _ways_of_dependence(dependence: Mapping[str, Sequence[str]]) -> list[Any]:
    """Returns schemas of the objects that have a key without another that it requires."""
    return [
        {"type": "object", "required": [name], "properties": {other: False}}
        for name, others in dependence.items()
        for other in others
        if other != name
    ]


def _says_nothing(keyword: str, value: Any) -> bool:
    match keyword:
        case "uniqueItems":
            return value is False
        case "patternProperties" | "dependentSchemas":
            return all(one in ANYTHING for one in value.values())
        case "prefixItems":
            return all(one in ANYTHING for one in value)
    return value in ANYTHING


def _any_of(ways: list[Any]) -> Any:
    ways = [way for way in ways if way is not False]
    if True in ways:
        return True
    return {"anyOf": ways} if len(ways) > 1 else ways[0] if ways else False


def _is_said(keyword: str, schema: Schema, beside: Sequence[Schema]) -> bool:
    """Returns whether a schema beside another says the same by one keyword."""
    also = ("prefixItems",) if keyword == "items" else ()
    if keyword in _DEPENDENT:
        return False
    key = value_key([schema.get(name) for name in (keyword, *also)])
    return any(
        keyword in part and value_key([part.get(name) for name in (keyword, *also)]) == key
        for part in beside
    )


def _keys_of(schema: Schema) -> list[str] | None:
    """Returns the keys that objects of a schema may have; None is any."""
    is_closed = schema.get("additionalProperties") is False and not schema.get("patternProperties")
    return [*schema.get("properties", {})] if is_closed else None


def _other_types(schema: Schema, types: Collection[str], beside: Sequence[Schema]) -> list[Any]:
    if "number" in types and _is_whole(schema) and not any(map(_is_whole, beside)):
        raise NotSupported("type", '"integer" cannot be negated')
    others = sorted(frozenset(types) - types_of(schema))
    return [{"type": others}] if others else []


def _is_whole(schema: Schema) -> bool:
    named = named_types(schema) or ()
    return "integer" in named and "number" not in named


def _between(low: float, high: float) -> Schema:
    ends = {"exclusiveMinimum": low, "exclusiveMaximum": high}
    return {"type": "number"} | {key: end for key, end in ends.items() if abs(end) != math.inf}

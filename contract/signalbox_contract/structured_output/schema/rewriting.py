"""Rewrites a JSON schema into one of the same meaning that llguidance compiles exactly.

A keyword that llguidance lacks becomes others that say the same; where there are none, it is
refused by name. Keywords that say nothing about values are left out, a "format" that llguidance
does not know among them.
"""

from collections.abc import Callable, Collection
from functools import partial
from itertools import combinations
from typing import Any

from signalbox_contract.structured_output.schema.disjointness import Disjointness
from signalbox_contract.structured_output.schema.key_names import closed_objects
from signalbox_contract.structured_output.schema.negation import Negation
from signalbox_contract.structured_output.schema.numbers import (
    check_multiples,
    exact_bounds,
    plain_values,
)
from signalbox_contract.structured_output.schema.patterns import plain_pattern
from signalbox_contract.structured_output.schema.references import flatten
from signalbox_contract.structured_output.schema.vocabulary import (
    ANYTHING,
    TYPE_OF,
    TYPES,
    Budget,
    NotSupported,
    Schema,
    definition_of,
    map_children,
    reference_to,
    types_of,
    value_key,
    values_of,
)

_MAX_STEPS = 100_000
_FORMATS = frozenset({
    "date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid", "uri",
})  # fmt: skip
"""Formats that llguidance enforces."""
_AS_THEY_ARE = frozenset({
    "type", "required", "minItems", "maxItems", "minLength", "maxLength", "maxProperties",
    "multipleOf", "$ref",
})  # fmt: skip
_IN_PLACE = frozenset({
    "$ref", "allOf", "anyOf", "oneOf", "not", "if", "dependentSchemas",
})  # fmt: skip
_ITEMS_OF_ANY_SCHEMA = frozenset({"allOf", "anyOf", "oneOf", "$ref", "if", "not", "contains"})


def rewrite(document: Any, *, empty: Collection[str] = ()) -> Any:
    """Returns the schema to compile. Raises SchemaError.

    Args:
        empty: definitions of the result to which nothing conforms.
    """
    flat = flatten(document)
    rewriting = _Rewriting(flat.definitions)
    schema = rewriting.of(flat.schema)
    definitions = rewriting.definitions
    while missing := rewriting.needed - definitions.keys():
        for name in missing:
            definitions[name] = rewriting.of(flat.definitions[name])
    if rewriting.combines:
        check_multiples(rewriting.multiples)
    if not definitions:
        return schema
    result = {**schema, "$defs": definitions}
    return _without_references(result, set(map(reference_to, empty))) if empty else result


class _Rewriting:
    def __init__(self, definitions: Schema) -> None:
        self.needed: set[str] = set()
        """Definitions that the rewritten schemas refer to."""
        self.multiples: set[float] = set()
        self.combines = False
        """True if several schemas may apply to one value."""
        self.definitions: Schema = {}
        """Definitions that rewriting has added."""
        self._around: list[Schema] = []
        """Schemas that apply to the same value as the one that is being rewritten, and itself."""
        self._names: dict[int, tuple[str, Schema]] = {}
        self._budget = Budget(_MAX_STEPS)
        self._disjointness = Disjointness(definitions, self._budget)
        self._negation = Negation(
            self._budget,
            self._disjointness,
            exclusive=lambda schema: self._exclusive(schema, []),
        )

    def of(self, schema: Any) -> Any:
        """Returns a schema to which nothing else applies, with those below it rewritten.

        One that leads back to itself becomes a definition.
        """
        if not isinstance(schema, dict) or not schema.keys() & _IN_PLACE:
            return self._whole(schema, None)
        name, _ = self._names.setdefault(id(schema), (f"part.{len(self._names)}", schema))
        reference = {"$ref": reference_to(name)}
        if name in self.definitions:
            self.definitions[name] = True  # leads back to itself
            return reference
        self.definitions[name] = None
        whole = self._whole(schema, None)
        if self.definitions[name] is None:
            del self.definitions[name]
            return whole
        self.definitions[name] = whole
        return reference

    def _whole(self, schema: Any, chain: tuple[str, ...] | None) -> Any:
        """Returns a schema with those below it rewritten.

        Args:
            chain: None if nothing else applies to the same value. Otherwise references are replaced
                by what they refer to, as llguidance needs it; these are the ones around.
        """
        self._budget.spend()
        if isinstance(schema, bool):
            return schema
        around = self._around
        self._around = [schema] if chain is None else [*around, schema]
        try:
            return self._rewritten(schema, chain)
        finally:
            self._around = around

    def _rewritten(self, schema: Schema, chain: tuple[str, ...] | None) -> Any:
        self.combines = self.combines or chain is not None
        if chain is None and len(schema.keys() & _CONSTRAINING) > 1:
            chain = ()
        kept: Schema = {}
        for keyword, value in schema.items():
            kept.update(self._kept(keyword, value, schema, chain))
        kept.update(exact_bounds(schema))
        more = [self._whole(one, chain) for one in self._more(schema)]
        if "$ref" in kept and chain is not None and kept["$ref"] not in chain:
            reference = kept.pop("$ref")
            target = self._disjointness.resolve(reference)
            more.insert(0, self._whole(target, (*chain, reference)))
        elif "$ref" in kept:
            self.needed.add(definition_of(kept["$ref"]))
        more = [one for one in more if one not in ANYTHING]
        return _all_of([kept, *more] if kept else more)

    def _kept(
        self, keyword: str, value: Any, schema: Schema, chain: tuple[str, ...] | None
    ) -> Schema:
        """Returns what stays of one keyword, in its place."""
        if keyword == "multipleOf":
            self.multiples.add(value)
        if keyword in _AS_THEY_ARE:
            return {keyword: value}
        match keyword:
            case "properties":
                return {keyword: {name: self.of(one) for name, one in value.items()}}
            case "patternProperties":
                return {keyword: {plain_pattern(name): self.of(one) for name, one in value.items()}}
            case "allOf" | "anyOf":
                if keyword == "allOf" and len(value) > 1:
                    chain = chain or ()
                make = self.of if chain is None else partial(self._whole, chain=chain)
                return {keyword: [make(one) for one in value]}
            case "prefixItems":
                return {keyword: [self.of(one) for one in value]}
            case "items" | "additionalProperties":
                return {keyword: self.of(value)}
            case "pattern":
                return {keyword: plain_pattern(value)}
            case "format" if value in _FORMATS:
                return {keyword: value}
            case "const" | "enum":
                return {keyword: plain_values(keyword, value)}
            case "minProperties" if self._counts_keys(schema):
                return {keyword: value}
        return {}

    def _more(self, schema: Schema) -> list[Any]:
        """Returns schemas that say what the keywords said that llguidance lacks."""
        more: list[Any] = []
        for keyword in schema:
            find = _REWRITTEN.get(keyword)
            if find is not None:
                more += find(self, schema)
        return more

    def _negated(self, keyword: str, schema: Any, beside: Any, types: frozenset[str]) -> Any:
        """Returns what does not conform to a schema, of values that conform to another."""
        try:
            parts = self._disjointness.conjuncts(beside)
            return self._negation.of(schema, types, beside=parts)
        except NotSupported as error:
            raise NotSupported(keyword, f"is not supported here: {error}") from None

    def _not(self, schema: Schema) -> list[Any]:
        return [self._negated("not", schema["not"], schema, types_of(schema))]

    def _one_of(self, schema: Schema) -> list[Any]:
        return [{"anyOf": self._exclusive(schema, self._around)}]

    def _exclusive(self, schema: Schema, applying: list[Schema]) -> list[Any]:
        """Returns alternatives; where two overlap, each says that the other does not apply.

        Args:
            applying: other schemas of the same value.
        """
        options, types = schema["oneOf"], types_of(schema)
        around = [
            {key: part[key] for key in part if key in _PLAIN}
            for part in self._disjointness.conjuncts({"allOf": applying})
        ]
        listed = [_listed(option) for option in options]
        ways: list[list[Any]] = [[option] for option in options]
        for i, j in combinations(range(len(options)), 2):
            one, other = listed[i], listed[j]
            if one is not None and other is not None and one.isdisjoint(other):
                continue
            beside = [{"allOf": [*around, options[k]]} for k in (i, j)]
            if common := self._disjointness.overlap(beside[0], options[j], types=types):
                ways[i].append(self._excluded(options[j], beside[0], common))
                ways[j].append(self._excluded(options[i], beside[1], common))
        return [_all_of(way) for way in ways]

    def _excluded(self, other: Any, beside: Any, common: frozenset[str]) -> Any:
        """Returns what says, beside one alternative, that another does not apply.

        Args:
            common: the types whose values may be in both.
        """
        negated = self._negated("oneOf", other, beside, common)
        rest = sorted(TYPES - common)
        if negated is False:
            return {"type": rest} if rest else False
        return {"anyOf": [{"type": rest}, negated]} if rest else negated

    def _if(self, schema: Schema) -> list[Any]:
        then, other = schema.get("then", True), schema.get("else", True)
        if then in ANYTHING and other in ANYTHING:
            return []
        negated = self._negated("if", schema["if"], schema, types_of(schema))
        return [{"anyOf": [{"allOf": [schema["if"], then]}, {"allOf": [negated, other]}]}]

    def _dependent_required(self, schema: Schema) -> list[Any]:
        """Groups the keys that need the same others: all are absent, or the others are there."""
        groups: dict[tuple[str, ...], list[str]] = {}
        for name, needed in schema["dependentRequired"].items():
            if needed:
                groups.setdefault(tuple(sorted(needed)), []).append(name)
        return [
            {"anyOf": [_without(names), {"type": "object", "required": [*needed]}]}
            for needed, names in groups.items()
        ]

    def _dependent_schemas(self, schema: Schema) -> list[Any]:
        return [
            {"anyOf": [_without([name]), {"type": "object", "required": [name], "allOf": [one]}]}
            for name, one in schema["dependentSchemas"].items()
            if one not in ANYTHING
        ]

    def _property_names(self, schema: Schema) -> list[Any]:
        if "object" not in types_of(schema):
            return []
        return closed_objects(schema["propertyNames"], self._disjointness)

    def _min_properties(self, schema: Schema) -> list[Any]:
        """At least one of the keys that may be absent."""
        least = schema["minProperties"] - len(schema.get("required", ()))
        if "object" not in types_of(schema) or least <= 0 or self._counts_keys(schema):
            return []
        optional = _optional(schema)
        ways: list[Any] = [{"type": "object", "required": [name]} for name in optional]
        if _has_free_keys(schema):
            ways.append({**_without(optional), "minProperties": schema["minProperties"]})
        return [{"anyOf": ways}]

    def _counts_keys(self, schema: Schema) -> bool:
        """Returns whether llguidance counts the keys of these objects as they are."""
        least = schema["minProperties"] - len(schema.get("required", ()))
        if "object" not in types_of(schema) or least <= 0:
            return False
        if least > 1 and _has_free_keys(schema):
            raise NotSupported("minProperties", "is not supported with keys that may be equal")
        return not (least == 1 and _optional(schema) and _has_free_keys(schema))

    def _unique_items(self, schema: Schema) -> list[Any]:
        if schema["uniqueItems"] and "array" in types_of(schema) and schema.get("maxItems", 2) > 1:
            raise NotSupported("uniqueItems")
        return []

    def _contains(self, schema: Schema) -> list[Any]:
        is_free = schema.get("minContains", 1) == 0 and "maxContains" not in schema
        if "array" in types_of(schema) and not is_free:
            raise NotSupported("contains")
        return []

    def _unevaluated_items(self, schema: Schema) -> list[Any]:
        if schema["unevaluatedItems"] in ANYTHING or "array" not in types_of(schema):
            return []
        if schema.keys() & _ITEMS_OF_ANY_SCHEMA:
            raise NotSupported("unevaluatedItems")
        if "items" in schema:
            return []
        prefix = [True] * len(schema.get("prefixItems", ()))
        return [{"prefixItems": prefix, "items": schema["unevaluatedItems"]}]

    def _unevaluated_properties(self, schema: Schema) -> list[Any]:
        if schema["unevaluatedProperties"] in ANYTHING or "object" not in types_of(schema):
            return []
        if schema.keys() & {*_ITEMS_OF_ANY_SCHEMA, "dependentSchemas"}:
            raise NotSupported("unevaluatedProperties")
        if "additionalProperties" in schema:
            return []
        known = {
            keyword: dict.fromkeys(schema[keyword], True)
            for keyword in ("properties", "patternProperties")
            if keyword in schema
        }
        return [{**known, "additionalProperties": schema["unevaluatedProperties"]}]


_REWRITTEN: dict[str, Callable[[_Rewriting, Schema], list[Any]]] = {
    "not": _Rewriting._not,
    "oneOf": _Rewriting._one_of,
    "if": _Rewriting._if,
    "dependentRequired": _Rewriting._dependent_required,
    "dependentSchemas": _Rewriting._dependent_schemas,
    "propertyNames": _Rewriting._property_names,
    "minProperties": _Rewriting._min_properties,
    "uniqueItems": _Rewriting._unique_items,
    "contains": _Rewriting._contains,
    "unevaluatedItems": _Rewriting._unevaluated_items,
    "unevaluatedProperties": _Rewriting._unevaluated_properties,
}


_PLAIN = frozenset({*TYPE_OF, "type", "const", "enum"})
_CONSTRAINING = frozenset({
    *TYPE_OF, *_REWRITTEN, *_AS_THEY_ARE, "allOf", "anyOf", "const", "enum",
})  # fmt: skip


def _without_references(schema: Any, references: Collection[str]) -> Any:
    """Returns a schema to which nothing conforms in the place of each of the references."""
    if not isinstance(schema, dict):
        return schema
    if schema.get("$ref") in references:
        return False
    return map_children(schema, lambda one: _without_references(one, references))


def _all_of(schemas: list[Any]) -> Any:
    return {"allOf": schemas} if len(schemas) > 1 else schemas[0] if schemas else {}


def _without(names: list[str]) -> Schema:
    return {"properties": dict.fromkeys(names, False)}


def _listed(schema: Any) -> frozenset[Any] | None:
    """Returns the keys of the values that a schema lists, or None if it lists none."""
    values = values_of(schema) if isinstance(schema, dict) else None
    return None if values is None else frozenset(map(value_key, values))


def _optional(schema: Schema) -> list[str]:
    """Returns the declared keys that may be there or not."""
    required = schema.get("required", ())
    names = schema.get("properties", {}).items()
    return [name for name, one in names if one is not False and name not in required]


def _has_free_keys(schema: Schema) -> bool:
    return schema.get("additionalProperties") is not False or bool(schema.get("patternProperties"))

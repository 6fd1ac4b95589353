"""Closes the objects of a JSON schema that declare properties and do not mention additional
ones.

A model under an open schema may go on adding keys until its tokens run out. An object is closed as
`unevaluatedProperties: false` would close it: allowed are the keys of its own `properties`, those
that its `allOf`, `$ref`, `anyOf`, `oneOf` and `if` declare, and those that they require. llguidance
does not support that keyword, so keys are listed: an object without such parts gets
`additionalProperties: false`, one with `allOf` or `$ref` a further part with the keys of all, each
branch of `anyOf` one with its own keys and those around it. Parts are not closed one by one,
because then no object might satisfy all of them. A definition that is used both as a part and as a
whole is copied.

Left open are: objects that set `additionalProperties`, objects without `properties`, objects with a
part that cannot be resolved (a remote reference) or has an `$anchor`, branches of a `oneOf` that no
constant distinguishes (if one closes, another may become the only one that matches), schemas with
more than `MAX_STEPS` schemas and keys to visit, and schemas in which a part has an `$id`.
"""

import json
from itertools import chain
from typing import Any

from router.params.schema_keys import (
    CONDITIONALS,
    Keys,
    SchemaReader,
    UnreadableSchema,
    as_dict,
    as_list,
    groups_of,
    own_keys,
)

MAX_STEPS = 50_000
"""Most schemas visited and keys listed."""
_CHARS_OF_STEP = 16
"""Characters of a listed key that count as one step; a longer key counts as several."""

_DEFINITIONS = ("$defs", "definitions")
_CHILD_MAPS = ("properties", "patternProperties")
_CHILDREN = (
    "additionalProperties", "items", "prefixItems", "additionalItems", "unevaluatedItems",
)  # fmt: skip


def close_schema(text: str) -> str:
    """Returns the schema with its objects closed; text that is not a schema is returned
    unchanged."""
    try:
        root = json.loads(text)
        closed = _Closing(root).root() if isinstance(root, dict) else root
    except (ValueError, RecursionError, UnreadableSchema):
        return text
    return text if closed == root else json.dumps(closed)


class _Closing:
    """Closes one schema; works on copies."""

    def __init__(self, root: dict[str, Any]) -> None:
        self._root = root
        self._reader = SchemaReader(root, max_steps=MAX_STEPS)
        self._definitions: dict[str, Any] = {}
        self._names_of_copies: dict[tuple[int, bool], str] = {}
        self._closed_in_place = {id(root)} | {
            id(schema) for key in _DEFINITIONS for schema in as_dict(root.get(key)).values()
        }

    def root(self) -> dict[str, Any]:
        closed: dict[str, Any] = self._closed(self._root)
        for key in _DEFINITIONS:
            if isinstance(self._root.get(key), dict):
                closed[key] = {
                    name: self._closed(schema) for name, schema in self._root[key].items()
                }
        if self._definitions:
            closed["$defs"] = {**as_dict(closed.get("$defs")), **self._definitions}
        return closed

    def _closed(self, schema: Any, around: Keys = Keys()) -> Any:  # noqa: B008
        """Returns the closed schema; its object may also have the keys `around` it."""
        if not isinstance(schema, dict):
            return schema
        own = own_keys(schema)
        if own is None:
            return self._open(schema)
        certain = own.plus(around)
        for part in self._reader.certain_parts(schema):
            keys = self._reader.keys_of(part)
            if keys is None:
                return self._open(schema)
            joined = certain.plus(keys)
            if joined is not keys:
                self._reader.step(len(keys.names))
            certain = joined
        groups = [self._reader.group_keys(group) for group in groups_of(schema)]
        if all(keys is not None and certain.covers(keys) for keys in groups):
            return self._closed_to(certain, schema)
        return self._with_closed_branches(schema, certain)

    def _closed_to(self, keys: Keys, schema: dict[str, Any]) -> Any:
        """Returns a schema closed to these keys, in the shortest form."""
        if not (keys.is_declared and keys.suffice):
            return self._open(schema)
        own = own_keys(schema)
        if "properties" in schema and own is not None and own.covers(keys):
            result = self._open(schema)
            for name in own.names:  # it is required but not declared
                result["properties"].setdefault(name, True)
            return {**result, "additionalProperties": False}
        if "$ref" in schema and self._reader.covers(self._reader.resolve(schema["$ref"]), keys):
            result = self._open(schema, but=("$ref",))
            return {**result, "$ref": self._reference(schema["$ref"], is_part=False)}
        for i, part in enumerate(as_list(schema.get("allOf"))):
            if self._reader.covers(part, keys):
                result = self._open(schema, but=("allOf",))
                parts = enumerate(schema["allOf"])
                result["allOf"] = [
                    self._closed(one) if k == i else self._open(one) for k, one in parts
                ]
                return result
        result = self._open(schema)
        return {**result, "allOf": [*as_list(result.get("allOf")), self._seal(keys)]}

    def _with_closed_branches(self, schema: dict[str, Any], certain: Keys) -> Any:
        groups = {key: as_list(schema[key]) for key in ("anyOf", "oneOf") if key in schema}
        closed = {}
        for key, branches in groups.items():
            around = self._reader.group_keys(chain.from_iterable(groups_of(schema, but=key)))
            if around is not None and (key == "anyOf" or self._reader.are_exclusive(branches)):
                context = certain.plus(around)
                closed[key] = [self._closed_branch(branch, context) for branch in branches]
        result = {**self._open(schema, but=tuple(closed)), **closed}
        others = self._reader.group_keys(chain.from_iterable(groups_of(schema)))
        if others is None or len(closed) == len([*groups_of(schema)]):
            return result
        keys = certain.plus(others)
        if keys.is_declared and keys.suffice:
            result["allOf"] = [*as_list(result.get("allOf")), self._seal(keys)]
        return result

    def _closed_branch(self, branch: Any, around: Keys) -> Any:
        keys = self._reader.keys_of(branch)
        if keys is None or not self._reader.admits_objects(branch):
            return self._open(branch)
        if branch is True and around.is_declared:
            return self._seal(around)
        return self._closed(branch, around)

    def _open(self, schema: Any, *, but: tuple[str, ...] = ()) -> Any:
        """Returns a part of another schema: schemas below it are closed, the part itself is not.

        Args:
            but: keys that are left unchanged.
        """
        if not isinstance(schema, dict):
            return schema
        self._reader.step()
        if schema is not self._root and isinstance(schema.get("$id", schema.get("id")), str):
            raise UnreadableSchema
        result = dict(schema)
        for key, value in schema.items():
            if key in but:
                continue
            if key in _CHILD_MAPS and isinstance(value, dict):
                result[key] = {name: self._closed(child) for name, child in value.items()}
            elif key in _CHILDREN:
                is_list = isinstance(value, list)
                result[key] = [*map(self._closed, value)] if is_list else self._closed(value)
            elif key in ("allOf", "anyOf", "oneOf") and isinstance(value, list):
                result[key] = [*map(self._open, value)]
            elif key in CONDITIONALS:
                result[key] = self._open(value)
            elif key == "dependentSchemas" and isinstance(value, dict):
                result[key] = {name: self._open(child) for name, child in value.items()}
            elif key == "$ref":
                result[key] = self._reference(value, is_part=True)
        return result

    def _reference(self, reference: Any, *, is_part: bool) -> Any:
        """Returns a reference to the closed or the open form of the referenced schema."""
        target = self._reader.resolve(reference)
        keys = self._reader.keys_of(target)
        is_part &= keys is not None and keys.is_declared  # otherwise both forms are equal
        if target is None or (not is_part and id(target) in self._closed_in_place):
            return reference
        key = (id(target), is_part)
        if key not in self._names_of_copies:
            taken = {*self._definitions, *as_dict(self._root.get("$defs"))}
            number = len(self._names_of_copies)
            while (name := f"{'part' if is_part else 'whole'}-{number}") in taken:
                number += 1
            self._names_of_copies[key] = name
            self._definitions[name] = True  # a placeholder for recursive references
            copy = self._open(target) if is_part else self._closed(target)
            self._definitions[name] = {k: v for k, v in copy.items() if k not in _DEFINITIONS}
        return f"#/$defs/{self._names_of_copies[key]}"

    def _seal(self, keys: Keys) -> dict[str, Any]:
        listed = (*keys.names, *keys.patterns)
        self._reader.step(len(listed) + sum(map(len, listed)) // _CHARS_OF_STEP)
        seal: dict[str, Any] = {"properties": dict.fromkeys(keys.names, True)}
        if keys.patterns:
            seal["patternProperties"] = dict.fromkeys(keys.patterns, True)
        return {**seal, "additionalProperties": False}

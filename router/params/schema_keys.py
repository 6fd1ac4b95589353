"""Collects the keys that a JSON schema declares for its objects, over all parts of the schema.

An object's parts are the schemas that apply to the same value: `allOf` and `$ref` always, `anyOf`,
`oneOf`, `if` and `dependentSchemas` as the case may be.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple
from urllib.parse import unquote

CONDITIONALS = ("if", "then", "else")
_OPEN = frozenset(
    {"unevaluatedProperties", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveRef"}
)
_ANYTHING = {"unevaluatedProperties": True}


class UnreadableSchema(Exception):
    """The schema takes too many steps to read, or a part's `$id` changes the meaning of
    references."""


class Keys(NamedTuple):
    """Keys that an object may have."""

    names: tuple[str, ...] = ()
    patterns: tuple[str, ...] = ()
    is_declared: bool = False
    """True if the schema has `properties`, even if empty."""
    fewest: int = 0
    """Minimum number of keys."""

    @property
    def suffice(self) -> bool:
        return self.fewest <= len(self.names) or bool(self.patterns)

    def plus(self, *others: "Keys") -> "Keys":
        all_ = [one for one in (self, *others) if one != Keys()]
        if len(all_) < 2:
            return all_[0] if all_ else self
        return Keys(
            tuple(dict.fromkeys(name for one in all_ for name in one.names)),
            tuple(dict.fromkeys(pattern for one in all_ for pattern in one.patterns)),
            any(one.is_declared for one in all_),
            max(one.fewest for one in all_),
        )

    def covers(self, other: "Keys") -> bool:
        if self is other:
            return True
        return set(self.names) >= set(other.names) and set(self.patterns) >= set(other.patterns)


class SchemaReader:
    """Reads one schema and resolves its references."""

    def __init__(self, root: dict[str, Any], *, max_steps: int) -> None:
        """Reads `root`; raises UnreadableSchema after `max_steps` schemas visited and keys
        listed."""
        self._root = root
        self._keys: dict[int, Keys | None] = {}
        self._steps_left = max_steps

    def keys_of(self, schema: Any) -> Keys | None:
        """Returns the keys that the schema and its parts declare; None if any key is allowed."""
        if not isinstance(schema, dict):
            return Keys()
        if id(schema) not in self._keys:
            self.step()
            self._keys[id(schema)] = None  # for a schema that contains itself
            self._keys[id(schema)] = self._find_keys(schema)
        return self._keys[id(schema)]

    def _find_keys(self, schema: dict[str, Any]) -> Keys | None:
        own = own_keys(schema)
        if own is None:
            return None
        found = [self.keys_of(part) for part in self._parts(schema)]
        keys = [one for one in found if one is not None]
        if len(keys) < len(found):
            return None
        self.step(sum(len(one.names) for one in keys))
        return own.plus(*keys)

    def _parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        """Yields the schemas that apply to the same value; None for an unresolved reference."""
        yield from self.certain_parts(schema)
        for group in groups_of(schema):
            yield from group

    def certain_parts(self, schema: dict[str, Any]) -> Iterator[Any]:
        yield from as_list(schema.get("allOf"))
        if "$ref" in schema:
            target = self.resolve(schema["$ref"])
            yield _ANYTHING if target is None else target

    def resolve(self, reference: Any) -> Any:
        if not isinstance(reference, str) or (reference != "#" and reference[:2] != "#/"):
            return None
        node: Any = self._root
        for token in unquote(reference).split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            if isinstance(node, list) and token.isdecimal() and int(token) < len(node):
                node = node[int(token)]
            elif isinstance(node, dict) and token in node:
                node = node[token]
            else:
                return None
        return node if isinstance(node, dict) else None

    def covers(self, schema: Any, keys: Keys) -> bool:
        found = self.keys_of(schema)
        return found is not None and found.is_declared and found.covers(keys)

    def group_keys(self, group: Iterable[Any]) -> Keys | None:
        found = [self.keys_of(branch) for branch in group]
        keys = [one for one in found if one is not None]
        return Keys().plus(*keys) if len(keys) == len(found) else None

    def admits_objects(self, schema: Any) -> bool:
        if not isinstance(schema, dict):
            return schema is True
        if "$ref" in schema and (target := self.resolve(schema["$ref"])) is not None:
            return "type" not in target or "object" in _types(target)
        return "type" not in schema or "object" in _types(schema)

    def are_exclusive(self, branches: list[Any]) -> bool:
        """Returns whether no object matches two branches, even if they were open."""
        objects = [branch for branch in branches if self.admits_objects(branch)]
        if len(objects) < 2:
            return True
        tags = [self._tags(branch) for branch in objects]
        return any(
            all(name in one for one in tags)
            and len({json.dumps(one[name]) for one in tags}) == len(tags)
            for name in tags[0]
        )

    def _tags(self, branch: Any) -> dict[str, Any]:
        """Returns the constants that objects of the branch must contain."""
        while isinstance(branch, dict) and "$ref" in branch and "properties" not in branch:
            self.step()
            branch = self.resolve(branch["$ref"])
        if not isinstance(branch, dict):
            return {}
        properties = as_dict(branch.get("properties"))
        required = [name for name in as_list(branch.get("required")) if isinstance(name, str)]
        constants = {name: _constant(properties.get(name)) for name in required}
        return {name: value for name, value in constants.items() if isinstance(value, str)}

    def step(self, number: int = 1) -> None:
        self._steps_left -= number
        if self._steps_left < 0:
            raise UnreadableSchema


def own_keys(schema: dict[str, Any]) -> Keys | None:
    """Returns the keys that the schema itself declares; None if it says which other keys may
    come."""
    if schema.get("additionalProperties", False) is not False or _OPEN & schema.keys():
        return None
    values = [*as_list(schema.get("enum")), *([schema["const"]] if "const" in schema else [])]
    if any(isinstance(value, dict) for value in values):
        return None
    names = [*as_dict(schema.get("properties"))]
    names += [name for name in as_list(schema.get("required")) if isinstance(name, str)]
    for trigger, needed in as_dict(schema.get("dependentRequired")).items():
        names += [trigger, *(name for name in as_list(needed) if isinstance(name, str))]
    fewest = schema.get("minProperties")
    return Keys(
        tuple(dict.fromkeys(names)),
        tuple(as_dict(schema.get("patternProperties"))),
        isinstance(schema.get("properties"), dict),
        fewest if isinstance(fewest, int) else 0,
    )


def groups_of(schema: dict[str, Any], *, but: str = "") -> Iterator[list[Any]]:
    """Yields groups of alternatives, of which not all need apply."""
    for key in ("anyOf", "oneOf"):
        if key in schema and key != but:
            yield as_list(schema[key])
    if any(key in schema for key in CONDITIONALS):
        yield [schema[key] for key in CONDITIONALS if key in schema]
    if "dependentSchemas" in schema:
        yield [*as_dict(schema["dependentSchemas"]).values()]


def _constant(schema: Any) -> Any:
    values = as_dict(schema)
    enum = as_list(values.get("enum"))
    return enum[0] if len(enum) == 1 else values.get("const")


def _types(schema: dict[str, Any]) -> list[Any]:
    return types if isinstance(types := schema["type"], list) else [types]


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []

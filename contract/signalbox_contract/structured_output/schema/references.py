"""Brings a JSON schema into one dialect: 2020-12, with all references to `$defs` of plain names.

A reference may be a pointer, percent-encoded or not, an anchor, or the URI of an `$id` within the
schema; each target is resolved below its own root. Then it is copied once as a definition.
"""

import re
from typing import Any, NamedTuple
from urllib.parse import unquote, urljoin

from signalbox_contract.structured_output.schema.dialect import in_2020
from signalbox_contract.structured_output.schema.vocabulary import (
    ALONE,
    IN_LISTS,
    IN_MAPS,
    Budget,
    NotSupported,
    SchemaError,
    map_children,
    reference_to,
)

_MAX_SCHEMAS = 50_000
_DROPPED = frozenset({
    "$id", "id", "$anchor", "$dynamicAnchor", "$recursiveAnchor", "$defs", "definitions", "$schema",
    "$vocabulary",
})  # fmt: skip
_NAMED_BY_ID = re.compile(r"draft-0[1-4]/")
_NOT_PLAIN = re.compile(r"[^A-Za-z0-9_.-]")


class Flat(NamedTuple):
    """A schema without `$id`s, and the definitions that it refers to as `#/$defs/NAME`."""

    schema: Any
    definitions: dict[str, Any]

    def document(self) -> Any:
        """Returns the schema together with its definitions."""
        if not self.definitions:
            return self.schema
        return {**self.schema, "$defs": self.definitions}


class _Place(NamedTuple):
    """The resource that a schema stands in: the part of the document below one `$id`."""

    root: Any
    uri: str
    dialect: str
    around: "_Place | None" = None


def flatten(document: Any) -> Flat:
    """Returns a schema of the same meaning. Raises SchemaError."""
    return _Flattening(document).result()


class _Flattening:
    def __init__(self, document: Any) -> None:
        self._document = document
        self._budget = Budget(_MAX_SCHEMAS)
        self._resources: dict[tuple[int, str], _Place] = {}
        """Resources by the root of each that is around them, and their URI."""
        self._anchors: dict[tuple[int, str], tuple[Any, _Place]] = {}
        self._dynamic_anchors: list[str] = []
        self._names: dict[int, str] = {}
        self._definitions: dict[str, Any] = {}
        self._waiting: list[tuple[str, Any, _Place]] = []
        self._top = self._place(document, _Place(document, "", ""))
        self._index(document, self._top)

    def result(self) -> Flat:
        schema = self._copy(self._document, self._top)
        while self._waiting:
            name, target, place = self._waiting.pop()
            self._definitions[name] = self._copy(target, place)
        return Flat(schema, self._definitions)

    def _place(self, schema: Any, around: _Place) -> _Place:
        """Returns the resource of a schema: its own if it has an `$id`, or the one around it."""
        if not isinstance(schema, dict):
            return around
        dialect = schema.get("$schema")
        dialect = dialect if isinstance(dialect, str) else around.dialect
        for keyword in ("id", "$id") if _NAMED_BY_ID.search(dialect) else ("$id",):
            uri = schema.get(keyword)
            if isinstance(uri, str) and not uri.startswith("#"):
                return _Place(schema, urljoin(around.uri, uri).removesuffix("#"), dialect, around)
        return around._replace(dialect=dialect)

    def _index(self, schema: Any, around: _Place) -> None:
        """Notes the `$id`s and anchors of a schema and of all below it."""
        if not isinstance(schema, dict):
            return
        self._budget.spend()
        place = self._place(schema, around)
        resource: _Place | None = place
        while resource is not None and place.root is schema:
            self._budget.spend()
            self._resources.setdefault((id(resource.root), place.uri), place)
            resource = resource.around
        for keyword in ("$anchor", "$dynamicAnchor", "$id", "id"):
            name = schema.get(keyword)
            if isinstance(name, str) and (name[:1] == "#" or "nchor" in keyword):
                self._anchors[id(place.root), name.removeprefix("#")] = (schema, place)
                if keyword == "$dynamicAnchor":
                    self._dynamic_anchors.append(name)
        for key, value in schema.items():
            if key in IN_MAPS and isinstance(value, dict):
                below = [*value.values()]
            elif key in IN_LISTS and isinstance(value, list):
                below = value
            else:
                below = [value] if key in ALONE else []
            for one in below:
                self._index(one, place)

    def _copy(self, schema: Any, around: _Place) -> Any:
        self._budget.spend()
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise SchemaError("a schema must be an object, true or false")
        place = self._place(schema, around)
        checked = in_2020(schema, place.dialect)
        kept = {key: value for key, value in checked.items() if key not in _DROPPED}
        copy = map_children(kept, lambda one: self._copy(one, place))
        for keyword in ("$ref", "$dynamicRef", "$recursiveRef"):
            if keyword in copy:
                copy["$ref"] = self._pointer(keyword, copy.pop(keyword), place)
        return copy

    def _pointer(self, keyword: str, reference: Any, place: _Place) -> str:
        if not isinstance(reference, str):
            raise SchemaError(f'"{keyword}" must be a string')
        if (
            keyword == "$recursiveRef"
            and len({id(one.root) for one in self._resources.values()}) > 1
        ):
            raise NotSupported(keyword)
        if keyword == "$dynamicRef" and self._dynamic_anchors.count(reference.lstrip("#")) > 1:
            raise NotSupported(keyword)
        target, its_place = self._resolved(reference, place)
        name = self._names.get(id(target))
        if name is None:
            last = unquote(reference).rpartition("/")[2].strip("#")
            name = _NOT_PLAIN.sub("_", last) or "root"
            while name in self._definitions:
                name = f"{name}.{len(self._names)}"
            self._names[id(target)] = name
            self._definitions[name] = True  # holds the name's place
            self._waiting.append((name, target, its_place))
        return reference_to(name)

    def _resolved(self, reference: str, place: _Place) -> tuple[Any, _Place]:
        uri, _, fragment = reference.partition("#")
        if uri:
            place = self._resource(urljoin(place.uri, uri), place)
        fragment = unquote(fragment)
        if not fragment.startswith("/"):
            target = (place.root, place) if not fragment else None
            target = target or self._anchors.get((id(place.root), fragment))
            if target is None:
                raise SchemaError(f'"$ref" is to an anchor that is not there: {fragment!r}')
            return target
        node: Any = place.root
        for token in fragment.split("/")[1:]:
            token = token.replace("~1", "/").replace("~0", "~")
            try:
                node = node[int(token)] if isinstance(node, list) else node[token]
            except (KeyError, IndexError, TypeError, ValueError):
                raise SchemaError(f'"$ref" is to a place that is not there: {fragment}') from None
            around, place = place, self._place(node, place)
        return node, around

    def _resource(self, uri: str, place: _Place) -> _Place:
        """Returns the resource of a URI within the innermost of those around a place."""
        around: _Place | None = place
        while around is not None:
            if (id(around.root), uri) in self._resources:
                return self._resources[id(around.root), uri]
            around = around.around
        raise SchemaError('"$ref" is to another document, which the server does not fetch')

"""Inflates fields of JSON bodies, whatever their type: any value may stand at any place."""

import json
from collections.abc import Callable, Iterator
from typing import Any

from pydantic import BaseModel

from tests.hostile.inflated.inflated_fields import DEEP, LONG, Inflated, Shape, filled

Path = tuple[str | int, ...]
Make = Callable[[int], str]
UNKNOWN = "unknown_key"
MAX_DEPTH = 7
"""Of the paths that are followed; a schema may contain itself."""
_HERE = "\u2603 here"
_REPEATED = ("0", "1.5", "{}", "[]", '""', "null", '{"type":"text","text":"a"}', "[0]")


def inflated_bodies(path: str, kind: type[BaseModel], base: dict[str, Any]) -> Iterator[Inflated]:
    """Yields every field of a body, and unknown ones of each object in it; `base` is honest."""
    schema = kind.model_json_schema(by_alias=True)
    for place in dict.fromkeys(places(schema, schema)):
        text = json.dumps(put(base, place, _HERE, schema))
        for shape, variant, make in _shapes():
            name = ".".join(str(part) for part in place)
            yield Inflated(path, name, shape, variant, _body(text, make), is_grpc=False)


def _body(text: str, make: Make) -> Callable[[int], bytes]:
    before, _, after = text.partition(json.dumps(_HERE))
    return lambda size: (before + make(size) + after).encode()


def places(schema: dict[str, Any], node: Any, parents: Path = ()) -> Iterator[Path]:
    """Yields the path of every value that a JSON schema knows; 0 is the first item of a list."""
    if parents:
        yield parents
    if len(parents) == MAX_DEPTH:
        return
    for one in branches(schema, node):
        properties = one.get("properties", {})
        for name, inner in properties.items():
            yield from places(schema, inner, (*parents, name))
        if properties:
            yield (*parents, UNKNOWN)
        if isinstance(one.get("additionalProperties"), dict):
            yield from places(schema, one["additionalProperties"], (*parents, "key"))
        if isinstance(one.get("items"), dict):
            yield from places(schema, one["items"], (*parents, 0))


def branches(schema: dict[str, Any], node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields what a node may be: itself, what it refers to, and each part of a union."""
    if "$ref" in node:
        node = schema["$defs"][node["$ref"].rpartition("/")[2]]
    yield node
    for union in ("anyOf", "oneOf", "allOf"):
        for one in node.get(union, ()):
            yield from branches(schema, one)


def example(schema: dict[str, Any], node: dict[str, Any]) -> Any:
    """Returns a smallest value of a schema: required fields alone."""
    one = next(iter([b for b in branches(schema, node) if {"type", "const", "enum"} & b.keys()]))
    if "const" in one or "enum" in one:
        return one.get("const", next(iter(one.get("enum", [None]))))
    if one["type"] == "object":
        fields = one.get("properties", {})
        return {name: example(schema, fields[name]) for name in one.get("required", ())}
    return {"array": [], "string": "a", "integer": 1, "number": 1, "boolean": True}.get(one["type"])


def put(base: Any, place: Path, value: Any, schema: dict[str, Any]) -> Any:
    """Returns the body with a value at a place; what is missing on the way is made."""
    return _put(base, place, value, schema, schema)


def _put(base: Any, place: Path, value: Any, schema: dict[str, Any], node: Any) -> Any:
    if not place:
        return value
    step, rest = place[0], place[1:]
    below = _below(schema, node, step) if node is not None else None
    if isinstance(step, int):
        items = list(base) if isinstance(base, list) else []
        first = items[0] if items else _example_of(schema, below)
        return [_put(first, rest, value, schema, below), *items[1:]]
    made = dict(base) if isinstance(base, dict) else _example_of_branch(schema, node, step)
    return made | {step: _put(made.get(step), rest, value, schema, below)}


def _below(schema: dict[str, Any], node: dict[str, Any], step: str | int) -> Any:
    for one in branches(schema, node):
        if isinstance(step, int) and isinstance(one.get("items"), dict):
            return one["items"]
        if step in one.get("properties", {}):
            return one["properties"][step]
        if step == "key" and isinstance(one.get("additionalProperties"), dict):
            return one["additionalProperties"]
    return None


def _example_of(schema: dict[str, Any], node: Any) -> Any:
    return example(schema, node) if node else None


def _example_of_branch(schema: dict[str, Any], node: Any, step: str | int) -> dict[str, Any]:
    for one in branches(schema, node or {}):
        if step in one.get("properties", {}):
            return dict(example(schema, one))
    return {}


def _shapes() -> Iterator[tuple[Shape, str, Make]]:
    for name, piece in LONG.items():
        yield "long", name, _text(piece)
    yield "long", "number", lambda size: "7" * size
    yield "long", "fraction", lambda size: "0." + "7" * size
    for piece in _REPEATED:
        yield "repeated", piece, _list(piece)
    yield "repeated", "one key", lambda size: "{" + filled('"a":1,', size) + '"a":1}'
    yield "wide", "keys", _object
    yield "wide", "numbers", lambda size: f"[{','.join(map(str, range(size // 6)))}]"
    for name, piece in DEEP.items():
        yield "deep", name, _nested(piece)
        yield "deep", f"{name} in a string", _text(piece)
    yield "slow", "string", _text("a")
    yield "slow", "list", _list("0")
    yield "unfinished", "list", _list("0")


def _text(piece: str) -> Make:
    return lambda size: json.dumps(filled(piece, size), ensure_ascii=False)


def _list(piece: str) -> Make:
    return lambda size: f"[{filled(piece + ',', size)}{piece}]"


def _object(size: int) -> str:
    """Returns an object of keys that differ, numbers as biases have them."""
    return json.dumps({str(number): 1 for number in range(size // 9)}, separators=(",", ":"))


def _nested(piece: str) -> Make:
    """Makes lists within lists, or objects within objects, all of them closed."""
    opening = "[" if piece == "(" else piece  # no JSON begins with one
    close = "]" if opening == "[" else "}"

    def make(size: int) -> str:
        depth = size // (len(opening) + 1)
        return opening * depth + "1" + close * depth

    return make

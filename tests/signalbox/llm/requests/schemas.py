"""Random JSON schemas whose documents are short."""

import random
from collections.abc import Callable
from typing import Any

Schema = dict[str, Any]
_WORDS = ("name", "size", "é", 'a "b"', "x y", "item_1", "")


def make_schema(rng: random.Random) -> Schema:
    """Returns a schema whose documents have at most a few dozen tokens, but for spaces."""
    if rng.random() < 0.2:
        return {"$ref": "#/$defs/it", "$defs": {"it": _schema(rng, depth=2)}}
    return _schema(rng, depth=2)


def _schema(rng: random.Random, *, depth: int) -> Schema:
    leaves: list[Callable[[random.Random], Schema]] = [_integer, _number, _string, _enum, _constant]
    if depth == 0:
        return rng.choice(leaves)(rng)
    return rng.choice([_object, _object, _array, _any_of])(rng, depth)


def _integer(rng: random.Random) -> Schema:
    low = rng.randint(-500, 500)
    return {"type": "integer", "minimum": low, "maximum": low + rng.randint(0, 1000)}


def _number(rng: random.Random) -> Schema:
    low = rng.randint(-50, 50)
    return {"type": "number", "enum": [low, low + 0.5, low * 1e6]}


def _string(rng: random.Random) -> Schema:
    if rng.random() < 0.3:
        return {"type": "string", "pattern": rng.choice(["^[a-c]{2,5}$", "^x(yz)?$", r"^\d{3}$"])}
    if rng.random() < 0.3:
        return {"type": "string", "format": "date"}
    least = rng.randint(0, 3)
    return {"type": "string", "minLength": least, "maxLength": least + rng.randint(0, 8)}


def _enum(rng: random.Random) -> Schema:
    return {"enum": rng.sample([None, True, False, 1, -2.5, "yes", "née", [1], {"a": 1}], 3)}


def _constant(rng: random.Random) -> Schema:
    return {"const": rng.choice([None, 7, "so", [True, "a"], {"k": {"l": []}}])}


def _object(rng: random.Random, depth: int) -> Schema:
    names = rng.sample(_WORDS, rng.randint(1, 3))
    return {
        "type": "object",
        "properties": {name: _schema(rng, depth=depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
        "additionalProperties": False,
    }


def _array(rng: random.Random, depth: int) -> Schema:
    least = rng.randint(0, 2)
    items = _schema(rng, depth=depth - 1)
    return {"type": "array", "items": items, "minItems": least, "maxItems": least + 1}


def _any_of(rng: random.Random, depth: int) -> Schema:
    return {"anyOf": [_schema(rng, depth=depth - 1) for _ in range(2)]}

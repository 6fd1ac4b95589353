"""Writes bounds and constants of numbers so that llguidance reads them exactly.

It reads each number as a floating-point number and keeps whole ones in 64 bits. A bound at or
beyond the end of 64 bits on its open side becomes that end; any other is exact, or refused.
"""

import math
from collections.abc import Collection
from decimal import Decimal
from itertools import combinations
from typing import Any

from signalbox_contract.structured_output.schema.vocabulary import (
    HIGH_BOUNDS,
    LOW_BOUNDS,
    NotSupported,
    Schema,
    named_types,
)

_END = 1 << 63
_LAST = _END - 1
"""Largest whole number that llguidance has: it reads 2**63, the float that is nearest, as this."""
_FLOAT_END = _END - 1024
"""Largest float below 2**63."""
_NEEDS_OTHER_END = 10**18
"""A whole number from here on has no regular expression in llguidance without a second bound."""
_EXACT = 1 << 53
_MAX_DECIMALS = 18
"""Decimals that llguidance reads as a whole number when it compares bounds."""
_BOUNDS = (*LOW_BOUNDS, *HIGH_BOUNDS)
_INEXACT = "has more digits than a floating-point number that is read exactly"


def exact_bounds(schema: Schema) -> Schema:
    """Returns the bounds of a schema in a form of the same meaning. Raises NotSupported."""
    if not any(key in schema for key in _BOUNDS):
        return {}
    named = named_types(schema)
    if named is not None and not {"integer", "number"} & {*named}:
        return {}
    is_whole = named is not None and "number" not in named
    return _whole_bounds(schema) if is_whole else _bounds(schema)


def _whole_bounds(schema: Schema) -> Schema:
    """Returns inclusive bounds of whole numbers."""
    lows = [(math.ceil(schema["minimum"]), "minimum")] if "minimum" in schema else []
    highs = [(math.floor(schema["maximum"]), "maximum")] if "maximum" in schema else []
    if "exclusiveMinimum" in schema:
        lows.append((math.floor(schema["exclusiveMinimum"]) + 1, "exclusiveMinimum"))
    if "exclusiveMaximum" in schema:
        highs.append((math.ceil(schema["exclusiveMaximum"]) - 1, "exclusiveMaximum"))
    low, low_key = max(lows, default=(None, ""))
    high, high_key = min(highs, default=(None, ""))
    if low is not None and high is not None and low > high:
        return {"minimum": 1, "maximum": 0}
    if low is not None:
        low = _whole(low, low_key, end=-_FLOAT_END)
        high = _LAST if high is None and low >= _NEEDS_OTHER_END else high
    if high is not None:
        high = _whole(high, high_key, end=_LAST)
        low = -_FLOAT_END if low is None and high <= -_NEEDS_OTHER_END else low
    return {key: end for key, end in (("minimum", low), ("maximum", high)) if end is not None}


def _whole(value: int, key: str, *, end: int) -> int:
    """Returns a whole bound, at most the end on its open side."""
    if value == _LAST or (value > _LAST if end > 0 else value <= -_LAST):
        return _LAST if value == _LAST else end
    if abs(value) >= _END:
        raise NotSupported(key, "leaves no whole number of 64 bits")
    if int(float(value)) != value:
        raise NotSupported(key, _INEXACT)
    return value


def _bounds(schema: Schema) -> Schema:
    bounds = {key: schema[key] for key in _BOUNDS if key in schema}
    for key in tuple(bounds):
        value, is_upper = bounds[key], key in HIGH_BOUNDS
        if abs(value) >= _END:
            if (value > 0) != is_upper:
                raise NotSupported(key, "leaves no number of 64 bits")
            del bounds[key]
            inclusive, end = ("maximum", _FLOAT_END) if is_upper else ("minimum", -_FLOAT_END)
            bounds.setdefault(inclusive, end)
        elif not _is_read(value) or (abs(value) >= _EXACT and key.startswith("exclusive")):
            raise NotSupported(key, _INEXACT)
        else:
            bounds[key] = _plain(value)
    lows = [bounds[key] for key in LOW_BOUNDS if key in bounds]
    highs = [bounds[key] for key in HIGH_BOUNDS if key in bounds]
    if lows and not highs and max(lows) >= _NEEDS_OTHER_END:
        bounds["maximum"] = _FLOAT_END
    if highs and not lows and min(highs) <= -_NEEDS_OTHER_END:
        bounds["minimum"] = -_FLOAT_END
    return bounds


def _is_read(value: float) -> bool:
    """Returns whether llguidance reads a number as it is, and prints no other digits.

    It reads digits as one whole number, which must be exact, and then divides by a power of ten.
    """
    shortest = Decimal(repr(float(value))).normalize()
    _, digits, exponent = shortest.as_tuple()
    assert isinstance(exponent, int)
    if exponent >= 0:
        return int(shortest) == value
    return int("".join(map(str, digits))) <= _EXACT and exponent >= -_MAX_DECIMALS


def _plain(value: float) -> float:
    return int(value) if value == int(value) else value


def plain_values(keyword: str, value: Any) -> Any:
    """Returns a constant with its numbers as llguidance reads them. Raises NotSupported."""
    match value:
        case list():
            return [plain_values(keyword, one) for one in value]
        case dict():
            return {name: plain_values(keyword, one) for name, one in value.items()}
        case bool() | None | str():
            return value
        case int() if abs(value) < _END and (value == _LAST or int(float(value)) == value):
            return value
        case float() if abs(value) < _END and _is_read(value):
            return _plain(value)
    raise NotSupported(keyword, f"of {value} {_INEXACT}")


def check_multiples(values: Collection[float]) -> None:
    """Raises NotSupported if llguidance would compute a common multiple of two beyond 32 bits."""
    for one, other in combinations({Decimal(repr(value)).normalize() for value in values}, 2):
        decimals = max(0, *(-int(value.as_tuple().exponent) for value in (one, other)))
        product = one.scaleb(decimals) * other.scaleb(decimals)
        if abs(product) >= 1 << 32:
            raise NotSupported("multipleOf", f"of both {one:f} and {other:f} is not supported")

"""Checks and converts the fields of `SamplingParams`, which Python callers may give any type."""

import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import Any

ALL_TOKENS = -1


def scalar(name: str, kind: Any, value: Any) -> Any:
    """Returns the value of a field that is an integer, a number or a flag, as its kind; None if it
    is None and may be. Raises TypeError.

    Args:
        kind: the field's annotation, such as `int | None`.
    """
    if value is None and kind in _OPTIONAL:
        return None
    kind = _OPTIONAL.get(kind, kind)
    is_kind, wanted = _KINDS[kind]
    if not is_kind(value):
        raise wrong_type(name, value, wanted)
    return kind(value)


def is_integer(value: object) -> bool:
    """Returns whether a value is a whole number, and not True or False."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


_KINDS: Mapping[type, tuple[Callable[[object], bool], str]] = {
    int: (is_integer, "an integer"),
    float: (_is_number, "a number"),
    bool: (lambda value: isinstance(value, bool), "True or False"),
}
_OPTIONAL: Mapping[Any, type] = {kind | None: kind for kind in _KINDS}
SCALARS = frozenset({*_KINDS, *_OPTIONAL})
"""Annotations of the fields that `scalar` reads."""


def wrong_type(name: str, value: object, wanted: str) -> TypeError:
    """Returns the error for a field of another type."""
    return TypeError(f"sampling_params.{name} is {value!r}; it must be {wanted}")


def strings(name: str, value: str | Sequence[str] | None) -> tuple[str, ...]:
    """Returns a field that is a string or several."""
    given = (value,) if isinstance(value, str) else tuple(value or ())
    for string in given:
        if not isinstance(string, str):
            raise wrong_type(name, string, "a string or a list of strings")
    return given


def token_ids(name: str, value: Sequence[int] | None) -> tuple[int, ...]:
    """Returns a field that is a list of token ids, which the model's vocabulary may lack."""
    given = tuple(value or ())
    for token_id in given:
        if not is_integer(token_id):
            raise wrong_type(name, token_id, "a list of integers")
    return tuple(int(token_id) for token_id in given)


def biases(value: Mapping[int, float] | None) -> list[tuple[int, float]]:
    """Returns logit_bias as pairs of token id and bias."""
    if value is None:
        return []
    if not isinstance(value, Mapping):
        raise wrong_type("logit_bias", value, "a dictionary of token ids and numbers")
    for bias in value.values():
        if not _is_number(bias):
            raise wrong_type("logit_bias", bias, "a dictionary of token ids and numbers")
    floats = [float(bias) for bias in value.values()]
    return list(zip(token_ids("logit_bias", tuple(value)), floats, strict=True))

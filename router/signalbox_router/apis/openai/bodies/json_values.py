"""Parses JSON bytes to plain values; refuses an object that has a key twice."""

import json
from typing import Any

from pydantic_core import from_json

from signalbox_router.apis.openai.requests.errors import MAX_PARAM_CHARS, BadRequest


def loaded(content: bytes) -> Any:
    """Returns the value. Raises BadRequest."""
    try:
        value = from_json(content, cache_strings="keys")
    except ValueError as error:
        raise BadRequest(f"the body is not valid JSON: {error}") from None
    # Colons in strings are counted too; only then the text is parsed again.
    num_colons = content.count(b":")
    if num_colons and num_colons != _num_keys(value):
        json.loads(content, object_pairs_hook=_refuse_repeated_keys)
    return value


def _num_keys(value: Any) -> int:
    """Returns the number of keys of all objects in a value."""
    number, unseen = 0, [value]
    while unseen:
        one = unseen.pop()
        if isinstance(one, dict):
            number += len(one)
            unseen.extend(child for child in one.values() if isinstance(child, dict | list))
        elif isinstance(one, list):
            unseen.extend(child for child in one if isinstance(child, dict | list))
    return number


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> None:
    """Raises BadRequest for a repeated key: a proxy might take the first value, this server the
    last."""
    if len(keys := {key for key, _ in pairs}) == len(pairs):
        return
    for key, _ in pairs:
        if key not in keys:
            shown = key[:MAX_PARAM_CHARS]
            raise BadRequest(f"{shown}: the same key twice in one object", shown)
        keys.remove(key)

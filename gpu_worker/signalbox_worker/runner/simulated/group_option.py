"""The option that names the groups of layers of a simulated worker."""

import re
from typing import Any

from signalbox_contract.cache_groups import STATE, WINDOW, CacheGroup, check_groups

_NUMBERS = {WINDOW: "window", STATE: "state_blocks"}
"""Field of `CacheGroup` with the number that follows a kind, by kind."""
_GROUP = re.compile(r"([a-z]+)(?::([1-9]\d{0,8}))?")


def groups_of(text: str) -> tuple[CacheGroup, ...]:
    """Returns the groups that a text names, such as "full,window:512". Raises ValueError."""
    groups = tuple(map(_group, text.split(",")))
    check_groups(groups)
    return groups


def groups_as_text(value: Any) -> str:
    """Returns the text as it is, if it names groups; a YAML file may give a list."""
    text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    groups_of(text)
    return text


def _group(text: str) -> CacheGroup:
    found = _GROUP.fullmatch(text)
    kind, number = found.groups() if found else ("", None)
    if found is None or (number is not None) != (kind in _NUMBERS):
        numbered = ", ".join(f"{one}:NUMBER" for one in _NUMBERS)
        raise ValueError(f"{text[:40]!r} is no group; give a kind, with a number in {numbered}")
    fields: dict[str, Any] = {_NUMBERS[kind]: int(number)} if number else {}
    return CacheGroup(kind=kind, **fields)

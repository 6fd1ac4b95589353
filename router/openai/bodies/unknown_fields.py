"""Handles fields that the API does not have: refuses them, or ignores and reports them.

Clients send fields of other servers. A name that nearly equals a known field's is a mistake and is
always refused; so is a known field that would change the answer and is not served.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from router.openai.requests.errors import BadRequest, NotServed
from router.openai.requests.types import Body

IGNORED_HEADER = "x-signalbox-ignored-fields"
MAX_NAMED = 16
MAX_NAME_CHARS = 64
MAX_UNKNOWN = 256
"""Different unknown names in a body; each is compared with every known name."""
LEAST_SIMILARITY = 0.88
"""Minimum difflib ratio of a suggested name: `max_token` and `max_tokens` have 0.95, `top_a` and
`top_p` 0.75."""
MAX_LOGGED_SETS = 256
"""Sets of names that are logged as warnings; further sets of a client that makes them up are
not."""

logger = logging.getLogger(__name__)


class Unknown(NamedTuple):
    """A field that is not declared by its object's type."""

    owner: Body
    place: str
    """Path of the object in the body, such as "messages[0]."; "" is the body itself."""
    name: str
    value: Any


def check_unknown(body: Body, *, refuses: bool) -> list[str]:
    """Returns the names of unknown fields, escaped and cut; one name for all items of a list.

    Raises BadRequest for a name close to a known one and for more than `MAX_UNKNOWN` of them,
    NotServed for a field that is not served, and with `refuses` BadRequest for any unknown field.
    """
    ignored: dict[str, None] = {}
    for one in _walk(body, ""):
        param = one.place + _cut(one.name)
        if one.name in one.owner.NOT_SERVED:
            _check_neutral(param, one.value)
            continue
        if (general := _general(one.place) + one.name) in ignored:
            continue
        message = f"Unrecognized request argument supplied: {param}"
        if meant := _meant(one.name, _names(one.owner)):
            raise BadRequest(f"{message}; did you mean {one.place}{meant}?", param)
        if refuses:
            raise BadRequest(message, param)
        if len(ignored) == MAX_UNKNOWN:
            raise BadRequest(f"the body has more than {MAX_UNKNOWN} unknown fields", param)
        ignored[general] = None
    return [_escaped(name) for name in ignored]


def check_served(kind: type[Body], fields: Mapping[str, Any]) -> None:
    """Raises NotServed for a field of a body that is known and not served."""
    for name in sorted(kind.NOT_SERVED & fields.keys()):
        _check_neutral(name, fields[name])


def _check_neutral(param: str, value: Any) -> None:
    if value is not None and value is not False:
        raise NotServed(f"{param}: this field is not served", param)


def header_of(names: Sequence[str]) -> dict[str, str]:
    """Returns the header that lists ignored fields; empty if there are none."""
    return {IGNORED_HEADER: _named(names)} if names else {}


class IgnoredLog:
    """Logs each set of ignored names once as a warning."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def record(self, names: Sequence[str]) -> None:
        text = _named(names)
        is_new = text not in self._seen and len(self._seen) < MAX_LOGGED_SETS
        if is_new:
            self._seen.add(text)
        level = logging.WARNING if is_new else logging.DEBUG
        logger.log(level, "ignored unknown fields of a request: %s", text)


def _walk(body: Body, place: str) -> Iterator[Unknown]:
    for name, value in (body.model_extra or {}).items():
        yield Unknown(body, place, name, value)
    for name, shown in _fields_with_bodies(type(body)):
        value, inner = getattr(body, name), place + shown
        if isinstance(value, Body):
            yield from _walk(value, f"{inner}.")
        elif isinstance(value, list):
            for i, item in enumerate(value):
                if isinstance(item, Body):
                    yield from _walk(item, f"{inner}[{i}].")


@cache
def _fields_with_bodies(kind: type[Body]) -> list[tuple[str, str]]:
    """Returns the fields that can hold a Body or a list of them, and their names in JSON."""
    return [
        (name, field.alias or name)
        for name, field in kind.model_fields.items()
        if any(issubclass(one, Body) for one in _types_in(field.annotation))
    ]


def _types_in(annotation: Any) -> Iterator[type]:
    """Yields the classes in a field's type annotation."""
    if isinstance(annotation, type) and get_origin(annotation) is None:
        yield annotation
    for part in get_args(annotation):
        yield from _types_in(part)


def _names(body: Body) -> list[str]:
    return [field.alias or name for name, field in type(body).model_fields.items()]


def _meant(name: str, known: Sequence[str]) -> str | None:
    """Returns the known name that a misspelt name probably means, or None."""
    by_letters = {_letters(one): one for one in known}
    found = difflib.get_close_matches(
        _letters(name[:MAX_NAME_CHARS]), by_letters, n=1, cutoff=LEAST_SIMILARITY
    )
    return by_letters[found[0]] if found else None


def _letters(name: str) -> str:
    """Maps `maxTokens`, `max-tokens` and `max_tokens` to the same text."""
    return name.lower().replace("_", "").replace("-", "")


def _general(place: str) -> str:
    """Removes list indices from a place: "messages[3]." becomes "messages[]." with its dot."""
    parts = place.split("[")
    return "[".join([parts[0], *("]" + part.partition("]")[2] for part in parts[1:])])


def _named(names: Sequence[str]) -> str:
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f", and {rest} more" if rest > 0 else "")


def _escaped(name: str) -> str:
    """Returns a name that can end neither a header nor a log line, cut to a length."""
    head = name[: MAX_NAME_CHARS + 1].encode("unicode_escape").decode("ascii")
    return _cut(head.replace(",", "\\x2c"))


def _cut(name: str) -> str:
    return name if len(name) <= MAX_NAME_CHARS else name[:MAX_NAME_CHARS] + "..."

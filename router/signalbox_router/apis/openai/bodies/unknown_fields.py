"""Handles fields that the API does not have: refuses them, or ignores and reports them.

Clients send fields of other servers. A name that nearly equals a known field's is a mistake and is
always refused; so is a known field that would change the answer and is not served.
"""

import difflib
import logging
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple, get_args, get_origin

from pydantic import ValidationError

from signalbox_router.apis.openai.requests.errors import BadRequest, NotServed
from signalbox_router.apis.openai.requests.foreign_fields import OLDER_NAMES, REFUSED, Foreign
from signalbox_router.apis.openai.requests.types import Body

IGNORED_HEADER = "x-signalbox-ignored-fields"
MAX_NAMED = 16
MAX_FIELD_CHARS = 64
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
    """Sets the fields that other servers' names mean, and returns the names of unknown fields,
    escaped and cut; one name for all items of a list.

    Raises BadRequest for a name close to a known one and for more than `MAX_UNKNOWN` of them,
    NotServed for a field that is not served, and with `refuses` BadRequest for any unknown field.
    """
    ignored: dict[str, None] = {}
    for one in _walk(body, ""):
        param = one.place + _cut(one.name)
        foreign = one.owner.FOREIGN.get(one.name)
        if foreign is not None and not _is_ignored(foreign, param, one.value):
            if foreign.is_served:
                _set_meant(one, foreign, param)
            continue
        if (general := _general(one.place) + one.name) in ignored:
            continue
        message = f"Unrecognized request argument supplied: {param}"
        if foreign is None and (meant := _meant(one.name, type(one.owner))):
            raise BadRequest(f"{message}; did you mean {one.place}{meant}?", param)
        if refuses or (one.owner.IS_CLOSED and one.value is not None):
            raise BadRequest(message, param)
        if len(ignored) == MAX_UNKNOWN:
            raise BadRequest(f"the body has more than {MAX_UNKNOWN} unknown fields", param)
        ignored[general] = None
    return [escaped(name) for name in ignored]


def check_served(kind: type[Body], fields: Mapping[str, Any]) -> None:
    """Raises NotServed for a field of a body that is known and not served."""
    for name in sorted(kind.FOREIGN.keys() & fields.keys()):
        _is_ignored(kind.FOREIGN[name], name, fields[name])


def _is_ignored(foreign: Foreign, param: str, value: Any) -> bool:
    """Returns whether a value has no effect here. Raises NotServed if it must not be ignored."""
    if foreign.is_served or foreign.asks_for_nothing(value):
        return False
    if foreign.does == REFUSED:
        server = foreign.server.partition(":")[0]
        raise NotServed(f"{param}: this field of {server} is not served", param)
    return True


def _set_meant(one: Unknown, foreign: Foreign, param: str) -> None:
    """Sets our field to the value of the one that has its meaning.

    Raises BadRequest if its type is wrong or our field has another value.
    """
    owner, name, value = one.owner, foreign.does, foreign.as_ours(one.value)
    if value is None:
        return
    for ours in (name, OLDER_NAMES.get(name, name)):
        known = getattr(owner, ours) if ours in owner.model_fields_set else None
        if known == value:
            break
        if known is not None:
            if not foreign.asks_for_nothing(one.value):
                raise BadRequest(f"{param}: {ours}, which it means, has another value", param)
            return
    try:
        type(owner).__pydantic_validator__.validate_assignment(owner, name, value)
    except ValidationError as error:
        raise BadRequest(f"{param}: {error.errors()[0]['msg']}", param) from None


def header_of(names: Sequence[str]) -> dict[str, str]:
    """Returns the header that lists ignored fields; empty if there are none."""
    return {IGNORED_HEADER: listed(names)} if names else {}


class IgnoredLog:
    """Logs each set of ignored names once as a warning."""

    def __init__(self) -> None:
        self._seen: set[str] = set()

    def record(self, names: Sequence[str]) -> None:
        text = listed(names)
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


@cache
def _names(kind: type[Body]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns the names of our fields and of foreign ones, by their letters."""
    known = [field.alias or name for name, field in kind.model_fields.items()]
    return {_letters(one): one for one in known}, {_letters(one): one for one in kind.FOREIGN}


def _meant(name: str, kind: type[Body]) -> str | None:
    """Returns the known name that a misspelt name probably means, or None.

    A foreign name is meant by the same letters alone: others resemble it by chance.
    """
    by_letters, foreign = _names(kind)
    if (meant := foreign.get(_letters(name[:MAX_FIELD_CHARS]))) is not None:
        return meant
    found = difflib.get_close_matches(
        _letters(name[:MAX_FIELD_CHARS]), by_letters, n=1, cutoff=LEAST_SIMILARITY
    )
    return by_letters[found[0]] if found else None


def _letters(name: str) -> str:
    """Maps `maxTokens`, `max-tokens` and `max_tokens` to the same text."""
    return name.lower().replace("_", "").replace("-", "")


def _general(place: str) -> str:
    """Removes list indices from a place: "messages[3]." becomes "messages[]." with its dot."""
    parts = place.split("[")
    return "[".join([parts[0], *("]" + part.partition("]")[2] for part in parts[1:])])


def listed(names: Sequence[str]) -> str:
    """Returns the first MAX_NAMED of some escaped names as one text."""
    rest = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f", and {rest} more" if rest > 0 else "")


def escaped(name: str) -> str:
    """Returns a name that can end neither a header nor a log line, cut to a length."""
    head = name[: MAX_FIELD_CHARS + 1].encode("unicode_escape").decode("ascii")
    return _cut(head.replace(",", "\\x2c"))


def _cut(name: str) -> str:
    return name if len(name) <= MAX_FIELD_CHARS else name[:MAX_FIELD_CHARS] + "..."

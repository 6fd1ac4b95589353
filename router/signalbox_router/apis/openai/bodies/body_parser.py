"""Parses and checks the JSON body of a request.

The parser and pydantic keep the interpreter's lock, and make objects a hundred times as large as
the bytes. So the values of a body of more than SMALL_BODY_BYTES are counted before it is parsed,
and its long lists are parsed and checked in pieces, between which other threads run.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise
from typing import Annotated, Any, NamedTuple, TypeVar

from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from signalbox_router.apis.inference.chat_codec import MAX_TEMPLATE_VALUES
from signalbox_router.apis.openai.bodies.json_values import loaded
from signalbox_router.apis.openai.bodies.unknown_fields import check_served
from signalbox_router.apis.openai.requests.errors import BadRequest, unreadable
from signalbox_router.apis.openai.requests.request_codec import MAX_PROMPTS
from signalbox_router.apis.openai.requests.types import Body, Items
from signalbox_router.generation.pooling.calls import MAX_INPUTS
from signalbox_router.limits.json_scan import (
    WINDOW_BYTES,
    Member,
    Shape,
    TooManyMembers,
    measure,
    scan,
)

SMALL_BODY_BYTES = 16 << 10
"""Bytes of the longest body that is parsed at once on the event loop; that takes at most 15 ms."""
MAX_DEPTH = 200
"""Levels of nesting; the parser of small bodies has the same limit."""
MAX_VALUES = 1 << 16
"""JSON values in one field: a schema of 64 KiB has 22,000."""
MAX_UNCUT_VALUES = 1 << 19
"""JSON values in all fields that are parsed at once."""
MAX_VALUES_OF: Mapping[str, int | None] = {
    "messages": 1 << 18,  # 65,536 messages with role and content have 196,608
    "tools": 1 << 18,
    "allowed_token_ids": 1 << 20,  # no vocabulary is as large
    "logit_bias": 1 << 12,
    "metadata": 1 << 12,
    "chat_template_kwargs": 2 * MAX_TEMPLATE_VALUES,
    "prompt": None,
    "input": None,
    "tokens": None,
}
"""Bounds of fields that differ from MAX_VALUES. Ids of prompts are bounded by the body's bytes."""
MAX_ITEM_VALUES = 1 << 16
"""JSON values in one message or one tool."""
LONG_ITEM_BYTES = 256 << 10
"""Bytes from which an item that is itself a list is parsed in pieces; more than two windows."""
_LISTS = frozenset({"messages", "tools", "prompt", "input", "tokens", "allowed_token_ids"})
_MOST_PROMPTS: Mapping[str, int] = {"prompt": MAX_PROMPTS, "input": MAX_INPUTS}
"""Most prompts in the fields that hold prompts: texts, token ids, or lists of them."""
_KEY = re.compile(rb'("(?:[^"\\]|\\.){0,200}")\s*+:\s*+', re.DOTALL)
_SPACE = re.compile(rb"\s*+")
B = TypeVar("B", bound=Body)


def parse(content: bytes, kind: type[B]) -> B:
    """Returns the checked body. Raises BadRequest."""
    if len(content) <= SMALL_BODY_BYTES:
        return _checked(kind, loaded(content))
    try:
        shape = scan(content)
    except TooManyMembers:
        raise BadRequest("the body has too many fields") from None
    if shape.depth > MAX_DEPTH:
        raise BadRequest(f"the body is nested more than {MAX_DEPTH} levels deep")
    cut = _lists_to_cut(content, kind, shape)
    _check_uncut(shape, cut)
    body = _checked(kind, loaded(_without_items(content, cut)))
    for one in cut:
        setattr(body, one.name, _items(content, kind, one))
    return body


class _List(NamedTuple):
    """A list that is cut out of the body and parsed by itself."""

    name: str
    member: Member
    start: int
    """Index after its opening bracket."""
    end: int
    """Index of its closing bracket."""

    def pieces(self, content: bytes) -> Iterator[tuple[int, int]]:
        yield from pairwise((self.start - 1, *self.member.cuts[0], self.end))


def _lists_to_cut(content: bytes, kind: type[Body], shape: Shape) -> list[_List]:
    """Returns the lists to parse in pieces. Raises BadRequest for a field with too many values."""
    cut = []
    limits = {**MAX_VALUES_OF, **kind.MAX_VALUES}
    for member in shape.members:
        name, start = _key_of(content, member)
        limit = limits.get(name or "", MAX_VALUES)
        if limit is not None and member.num_values > limit:
            raise BadRequest(f"{name or 'the body'}: more than {limit} JSON values", name)
        if name not in _LISTS or name not in kind.model_fields or not any(member.cuts):
            continue
        end = _last_byte(content, member)
        if content[start : start + 1] == b"[" and content[end : end + 1] == b"]":
            cut.append(_List(name, member, start + 1, end))
    return cut


def _key_of(content: bytes, member: Member) -> tuple[str | None, int]:
    """Returns a member's key, or None if it is long or missing, and the index of its value."""
    space = _SPACE.match(content, member.start, member.end)
    found = space and _KEY.match(content, space.end(), member.end)
    if found is None:
        return None, member.end
    try:
        return str(from_json(found[1])), found.end()
    except ValueError:
        return None, member.end


def _last_byte(content: bytes, member: Member) -> int:
    end = member.end - 1
    while end > member.start and content[end : end + 1].isspace():
        end -= 1
    return end


def _check_uncut(shape: Shape, cut: Sequence[_List]) -> None:
    num_values = shape.num_values - sum(one.member.num_values for one in cut)
    if num_values > MAX_UNCUT_VALUES:
        raise BadRequest(f"the body has more than {MAX_UNCUT_VALUES} JSON values")


def _without_items(content: bytes, cut: Sequence[_List]) -> bytes:
    rest, at = bytearray(), 0
    for one in cut:
        rest += content[at : one.start]
        at = one.end
    return bytes(rest + content[at:])


def _items(content: bytes, kind: type[Body], cut: _List) -> list[Any]:
    """Returns the items of a list, parsed and checked piece by piece."""
    items: list[Any] = []
    field = kind.model_fields[cut.name]
    annotation: Any = field.annotation
    if field.metadata:  # pydantic has moved the metadata from a type that is not a union
        annotation = Annotated[annotation, *field.metadata]
    for before, end in cut.pieces(content):
        start = before + 1
        if cut.name in _MOST_PROMPTS and _is_long_list(content, start, end):
            found = [_long_prompt(content, cut, start, end, len(items))]
        else:
            values = _piece(content, start, end)
            found = _checked_items(annotation, values, cut.name, len(items))
        items += found
        annotation = _annotation_of(found, annotation)
        most = _MOST_PROMPTS.get(cut.name)
        if most is not None and isinstance(items[0], str | list) and len(items) > most:
            raise BadRequest(f"{cut.name}: more than {most} prompts", cut.name)
    return items


def _is_long_list(content: bytes, start: int, end: int) -> bool:
    if end - start <= LONG_ITEM_BYTES:
        return False
    item = content[start:end].strip()
    return item[:1] == b"[" and item[-1:] == b"]" and b"," in item


def _long_prompt(content: bytes, cut: _List, start: int, end: int, position: int) -> list[int]:
    """Returns one token-id prompt of a list of prompts, parsed in pieces."""
    first, last = content.index(b"[", start), content.rindex(b"]", start, end)
    cuts = [at for at in cut.member.cuts[1] if first < at < last]
    ids: list[int] = []
    for before, after in pairwise((first, *cuts, last)):
        values = _piece(content, before + 1, after)
        ids += _checked_items(Items[int], values, f"{cut.name}[{position}]", len(ids))
    return ids


def _annotation_of(items: Sequence[Any], annotation: Any) -> Any:
    """Returns the type of a list's later items: prompts are all texts, all ids, or all lists."""
    match items[0] if items else None:
        case int():
            return Items[int]
        case str():
            return Items[str]
        case list():
            return Items[Items[int]]
    return annotation


def _piece(content: bytes, start: int, end: int) -> list[Any]:
    is_one_item = end - start > 2 * WINDOW_BYTES
    if is_one_item and measure(content[start:end]).num_values > MAX_ITEM_VALUES:
        raise BadRequest(f"an item of a list has more than {MAX_ITEM_VALUES} JSON values")
    values: list[Any] = loaded(b"[%b]" % content[start:end])
    if not values:
        raise BadRequest("the body is not valid JSON: an item of a list is missing")
    return values


def _checked_items(annotation: Any, values: list[Any], name: str, position: int) -> list[Any]:
    try:
        checked: list[Any] = _validator(annotation).validate_python(values, strict=True)
    except ValidationError as error:
        raise unreadable(error, values, name=name, position=position) from None
    return checked


@cache
def _validator(annotation: Any) -> TypeAdapter[Any]:
    return TypeAdapter(annotation)


def _checked(kind: type[B], value: Any) -> B:
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        if isinstance(value, dict):
            check_served(kind, value)  # what stands in for a missing field explains more
        raise unreadable(error, value) from None

"""Counts the values of a JSON text from its bytes, before a parser makes objects of it.

It finds the members of the outermost object, the number of values in each, and commas where a long
array can be cut into pieces that are parsed one by one. Contents of strings are not counted. numpy
processes the text in windows and lets other threads run meanwhile. Invalid JSON is counted too: the
parser finds its faults.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

WINDOW_BYTES = 32 << 10
"""Bytes that are processed at once, and the least length of a piece."""
MAX_MEMBERS = 1024
"""Most members of the outermost object that are told apart: bodies have fewer than a hundred
fields, and more than 256 unknown ones are refused."""
_QUOTE, _BACKSLASH, _COMMA, _OPENING, _CLOSING = b'"\\,{}'
_CASE = 0x20  # turns [ into {
Bytes = NDArray[np.uint8]
Flags = NDArray[np.bool_]


class TooManyMembers(ValueError):
    """The outermost object has more than MAX_MEMBERS members."""


@dataclass(slots=True)
class Member:
    """A key and its value, as bytes `start` to `end` of the text."""

    start: int
    end: int = 0
    num_values: int = 0
    """Commas and opening brackets in the value: about the number of JSON values."""
    cuts: tuple[list[int], list[int]] = field(default_factory=lambda: ([], []))
    """Positions of commas between the items of the value, and between the items of its items:
    the first and the last of each window."""


class Shape(NamedTuple):
    """Members, number of values and depth of a text."""

    members: list[Member]
    num_values: int
    depth: int
    """Deepest level of nesting; 1 if there is only the outermost bracket."""


class Measure(NamedTuple):
    """Number of values and depth of a text."""

    num_values: int
    depth: int


class _Window(NamedTuple):
    """Places of brackets and commas in a part of the text, outside of strings."""

    opening: Flags
    closing: Flags
    comma: Flags
    depth: NDArray[np.int32]
    """Nesting level after each byte."""


def measure(text: bytes) -> Measure:
    """Returns the counts of any JSON text."""
    num_values = depth = 0
    for _, window in _windows(text):
        num_values += int(np.count_nonzero(window.opening | window.comma))
        depth = max(depth, int(window.depth.max()))
    return Measure(num_values, depth)


def scan(text: bytes) -> Shape:
    """Returns the shape of an object. Raises TooManyMembers."""
    members = [Member(start=0)]
    num_values = depth = 0
    for offset, window in _windows(text):
        depth = max(depth, int(window.depth.max()))
        counted = np.cumsum(window.opening | window.comma, dtype=np.int32)
        begin, counted_before = 0, 0
        for end in _ends(window):
            _extend(members[-1], window, offset, begin, end)
            members[-1].num_values += int(counted[end]) - counted_before
            begin, counted_before = end + 1, int(counted[end])
            _begin_member(members, offset + begin)
        _extend(members[-1], window, offset, begin, len(counted))
        members[-1].num_values += int(counted[-1]) - counted_before
        num_values += int(counted[-1])
    members[-1].end = len(text)
    return Shape(members, num_values, depth)


def _begin_member(members: list[Member], start: int) -> None:
    if len(members) == MAX_MEMBERS:
        raise TooManyMembers
    members[-1].end = start - 1
    members.append(Member(start=start))


def _ends(window: _Window) -> list[int]:
    """Returns the places of the outermost object's brackets and commas, up to the limit."""
    opens = window.opening & (window.depth == 1)
    closes = window.closing & (window.depth == 0)
    between = window.comma & (window.depth == 1)
    found: list[int] = np.flatnonzero(opens | closes | between)[: MAX_MEMBERS + 1].tolist()
    return found


def _extend(member: Member, window: _Window, offset: int, begin: int, end: int) -> None:
    for cuts, depth in zip(member.cuts, (2, 3), strict=True):
        found = np.flatnonzero(window.comma[begin:end] & (window.depth[begin:end] == depth))
        if len(found):
            cuts.extend(offset + begin + int(at) for at in {int(found[0]): 0, int(found[-1]): 0})


def _windows(text: bytes) -> Iterator[tuple[int, _Window]]:
    depth, is_inside, is_escaped = 0, False, False
    for offset in range(0, len(text), WINDOW_BYTES):
        length = min(WINDOW_BYTES, len(text) - offset)
        part: Bytes = np.frombuffer(text, np.uint8, length, offset)
        quote, is_escaped = _quotes(part, is_escaped)
        inside = (np.cumsum(quote, dtype=np.uint8) + np.uint8(is_inside)) & 1
        is_inside = bool(inside[-1])
        bracket = part | _CASE
        outside = inside == 0
        opening = (bracket == _OPENING) & outside
        closing = (bracket == _CLOSING) & outside
        change = opening.astype(np.int32) - closing
        depths = np.cumsum(change, dtype=np.int32) + np.int32(depth)
        depth = int(depths[-1])
        yield offset, _Window(opening, closing, (part == _COMMA) & outside, depths)


def _quotes(part: Bytes, is_escaped: bool) -> tuple[Flags, bool]:
    """Returns the places where strings begin and end, and whether the byte after is escaped.

    A quote is escaped by an odd number of backslashes before it.

    Args:
        is_escaped: True if the first byte is escaped.
    """
    quote: Flags = part == _QUOTE
    backslash: Flags = part == _BACKSLASH
    if not is_escaped and not backslash.any():
        return quote, False
    places: NDArray[Any] = np.arange(len(part), dtype=np.int32)
    before = np.int32(-1 - is_escaped)  # acts as a backslash before the part
    last_other = np.maximum.accumulate(np.where(backslash, before, places))
    run = places - last_other  # number of backslashes that end at each place
    escaped = np.empty_like(quote)
    escaped[0] = is_escaped
    escaped[1:] = run[:-1] & 1
    return quote & ~escaped, bool(run[-1] & 1)

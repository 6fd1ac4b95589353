"""Counts the fields of a protobuf message from its bytes, before a parser makes objects of them.

An empty message in a repeated field takes two bytes on the wire, and a hundred or more once it is
parsed. A packed list of numbers and a text count as one field each, however long they are.
"""

from functools import cache
from typing import NoReturn

from google.protobuf.descriptor import Descriptor

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class Fields(dict[int, "Fields"]):
    """The fields of a message type that are messages themselves, by number, with their own
    fields."""


class TooManyFields(ValueError):
    """A message has more fields than it may."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name
        """Field of the message in which the last one was counted, or "" for an unknown one."""


def check_num_fields(data: bytes, message: Descriptor, *, most: int) -> None:
    """Raises TooManyFields. Bytes that are not a message are left for the parser to refuse."""
    count = number = 0
    unread = [(0, len(data), _fields_of(message))]
    try:
        while unread:
            at, end, messages = unread.pop()
            while at < end:
                # Most tags and lengths have one byte.
                tag, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
                count += 1
                if count > most:
                    _refuse(message, number if unread else tag >> 3)
                kind = tag & 7
                if kind == _BYTES:
                    length, at = (data[at], at + 1) if data[at] < 0x80 else _varint(data, at)
                    if length and tag >> 3 in messages:
                        number = number if unread else tag >> 3
                        unread.append((at + length, end, messages))
                        messages, end = messages[tag >> 3], at + length
                    else:
                        at += length
                elif kind == _VARINT:
                    at = at + 1 if data[at] < 0x80 else _varint(data, at)[1]
                elif kind in (_FIXED64, _FIXED32):
                    at += 8 if kind == _FIXED64 else 4
    except IndexError:  # cut off
        return


def _refuse(message: Descriptor, number: int) -> NoReturn:
    field = message.fields_by_number.get(number)
    raise TooManyFields("" if field is None else field.name)


@cache
def _fields_of(message: Descriptor) -> "Fields":
    return _fields(message, {})


def _fields(message: Descriptor, known: dict[str, "Fields"]) -> "Fields":
    """Returns the fields that are messages; a type may contain itself."""
    if message.full_name not in known:
        fields = known[message.full_name] = Fields()
        for field in message.fields:
            if field.message_type is not None:
                fields[field.number] = _fields(field.message_type, known)
    return known[message.full_name]


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Returns a number and the index after it. Raises IndexError at the end of the data."""
    byte = data[at]
    if byte < 0x80:
        return byte, at + 1
    value, shift = byte & 0x7F, 7
    while byte >= 0x80:
        at += 1
        byte = data[at]
        value |= (byte & 0x7F) << shift
        shift += 7
    return value, at + 1

"""Protobuf's JSON form of messages (protobuf.dev, ProtoJSON), written fast and read within bounds.

`google.protobuf.json_format` takes six times as long for a message of a stream. So messages are
written by a plan for each type, made of its descriptor; what `google.protobuf` defines is left to
that library, and so is reading.
"""

import base64
from collections.abc import Callable, Mapping
from functools import cache
from math import isfinite
from typing import Any, TypeVar

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message import Message
from pydantic_core import to_json

from signalbox_contract.errors import InvalidArgument
from signalbox_router.limits.json_scan import measure
from signalbox_rpc.interceptors.status import MalformedRequest
from signalbox_rpc.limits.large_messages import MAX_FIELDS

MAX_DEPTH = 100
"""Levels of nesting, as of messages in protobuf's own form."""
M = TypeVar("M", bound=Message)
Convert = Callable[[Any], Any]
Plan = Mapping[int, tuple[str, Convert | None]]
"""Name of each field, by number, and what makes its value one of JSON; None if it is one."""

_LONG = (
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT64,
)
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


def write(message: Message) -> bytes:
    """Returns a message as JSON, without fields that have no value."""
    return to_json(_fields(message))


def read(data: bytes, kind: type[M], *, ignores_unknown: bool) -> M:
    """Returns the message. Raises InvalidArgument with the reason, or MalformedRequest for bytes
    that are no text."""
    shape = measure(data)
    if shape.depth > MAX_DEPTH:
        raise InvalidArgument("request", f"{shape.depth} levels", f"at most {MAX_DEPTH} levels")
    if shape.num_values > MAX_FIELDS:
        found, allowed = f"{shape.num_values} values of JSON", f"at most {MAX_FIELDS}"
        raise InvalidArgument("request", found, f"{allowed}; in protobuf's own form ids are one")
    try:
        return json_format.Parse(data, kind(), ignore_unknown_fields=ignores_unknown)
    except json_format.ParseError as error:
        raise InvalidArgument("request", None, reason=str(error)) from None
    except Exception:  # of texts that are no UTF-8, or hold half of a character
        raise MalformedRequest(len(data)) from None


def _fields(message: Message) -> dict[str, Any]:
    plan, fields = _plan(message.DESCRIPTOR), {}
    for field, value in message.ListFields():
        name, convert = plan[field.number]
        fields[name] = value if convert is None else convert(value)
    return fields


@cache
def _plan(message: Descriptor) -> Plan:
    return {field.number: (field.json_name, _conversion(field)) for field in message.fields}


def _conversion(field: FieldDescriptor) -> Convert | None:
    kind = field.message_type
    if kind is not None and kind.GetOptions().map_entry:
        key, value = kind.fields
        return _map(_single(key), _single(value))
    convert = _single(field)
    if not field.is_repeated:
        return convert
    # A slice is a list that protobuf makes itself; iteration takes several times as long.
    return _list if convert is None else lambda values: [convert(one) for one in values[:]]


def _list(values: Any) -> Any:
    return values[:]


def _map(key: Convert | None, value: Convert | None) -> Convert:
    of_key: Convert = key or (lambda one: one if isinstance(one, str) else str(one).lower())
    return lambda entries: {
        of_key(name): one if value is None else value(one) for name, one in entries.items()
    }


def _single(field: FieldDescriptor) -> Convert | None:
    """Returns the conversion of one value, or None for none."""
    if field.message_type is not None:
        is_known = field.message_type.full_name.startswith("google.protobuf.")
        return json_format.MessageToDict if is_known else _fields
    if field.enum_type is not None:
        return _name_of(field.enum_type)
    if field.type == FieldDescriptor.TYPE_BYTES:
        return lambda value: base64.b64encode(value).decode()
    if field.cpp_type in _LONG:
        return str
    return _number if field.cpp_type in _FLOATS else None


def _name_of(kind: EnumDescriptor) -> Convert:
    names = {number: value.name for number, value in kind.values_by_number.items()}
    return lambda number: names.get(number, number)


def _number(value: float) -> float | str:
    if isfinite(value):
        return value
    return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"

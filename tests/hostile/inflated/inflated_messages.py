"""Inflates fields of protobuf messages, on the wire, so that any type can be any size."""

from collections.abc import Callable, Iterator
from typing import Any

from google.protobuf.descriptor import Descriptor, FieldDescriptor, ServiceDescriptor
from google.protobuf.message import Message

from tests.hostile.inflated.inflated_fields import DEEP, LONG, Inflated, Shape, filled

UNKNOWN_NUMBER = 12_345
MAX_DEPTH = 4
"""Of the paths that are followed; messages that contain themselves have no end."""
NESTED = 90
"""Levels of a message within itself; protobuf's parser refuses more than 100."""
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_WIRE = {
    FieldDescriptor.TYPE_DOUBLE: _FIXED64, FieldDescriptor.TYPE_FIXED64: _FIXED64,
    FieldDescriptor.TYPE_SFIXED64: _FIXED64, FieldDescriptor.TYPE_FLOAT: _FIXED32,
    FieldDescriptor.TYPE_FIXED32: _FIXED32, FieldDescriptor.TYPE_SFIXED32: _FIXED32,
    FieldDescriptor.TYPE_STRING: _BYTES, FieldDescriptor.TYPE_BYTES: _BYTES,
    FieldDescriptor.TYPE_MESSAGE: _BYTES,
}  # fmt: skip
Path = tuple[FieldDescriptor, ...]
Make = Callable[[int], bytes]


def inflated_messages(service: ServiceDescriptor, bases: dict[str, Message]) -> Iterator[Inflated]:
    """Yields every field of every request of a service; `bases` are honest requests by method."""
    for method in service.methods:
        endpoint = f"/{service.full_name}/{method.name}"
        base = bases.get(method.name)
        for path in [(), *paths(method.input_type)]:
            for shape, variant, make in _shapes(path):
                yield Inflated(
                    endpoint,
                    ".".join(field.name for field in path) or "(unknown field)",
                    shape,
                    variant,
                    _message(base, path, make),
                    is_grpc=True,
                )


def paths(descriptor: Descriptor, parents: Path = ()) -> Iterator[Path]:
    """Yields the path of every field, those of messages within messages included."""
    for field in descriptor.fields:
        yield (*parents, field)
        if field.message_type is not None and len(parents) < MAX_DEPTH:
            yield from paths(field.message_type, (*parents, field))


def _message(base: Message | None, path: Path, make: Make) -> Make:
    return lambda size: put(base, path, make(size))


def put(base: Message | None, path: Path, records: bytes) -> bytes:
    """Returns an honest message with records behind it, as deep inside as the path leads.

    Of a repeated field on the way the first element gets them.
    """
    if base is None or len(path) < 2:
        around = b"" if base is None else base.SerializeToString()
        for field in reversed(path[:-1]):
            records = record(field.number, records)
        return around + records
    field, several = path[0], type(base)()
    several.CopyFrom(base)
    value = getattr(several, field.name)
    child: Any = next(iter(value), None) if field.is_repeated else value
    inside = put(child if isinstance(child, Message) else None, path[1:], records)
    several.ClearField(field.name)
    return several.SerializeToString() + record(field.number, inside)


def record(number: int, payload: bytes) -> bytes:
    """Returns a length-delimited field."""
    return varint(number << 3 | _BYTES) + varint(len(payload)) + payload


def varint(value: int) -> bytes:
    encoded = bytearray()
    while value > 0x7F:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*encoded, value])


def _shapes(path: Path) -> Iterator[tuple[Shape, str, Make]]:
    if not path:
        yield "repeated", "varints", lambda size: _times(_scalar(UNKNOWN_NUMBER, _VARINT, 1), size)
        yield "long", "bytes", lambda size: record(UNKNOWN_NUMBER, bytes(size))
        return
    field = path[-1]
    number, wire = field.number, _WIRE.get(field.type, _VARINT)
    one = _scalar(number, wire, 0)
    yield "repeated", "empty", lambda size: _times(one, size)
    yield "wide", "counted", lambda size: _counted(field, wire, size)
    yield "slow", "bytes", lambda size: _times(one, size)
    yield "unfinished", "bytes", lambda size: _times(one, size)
    if wire != _BYTES:
        yield "long", "packed", lambda size: record(number, bytes(size))
    if field.type == FieldDescriptor.TYPE_MESSAGE:
        yield "deep", "itself", lambda size: _nested(number, field.message_type, size)
        return
    if wire == _BYTES:
        for shape, pieces in (("long", LONG), ("deep", DEEP)):
            for name, piece in pieces.items():
                yield shape, name, _text(number, piece)  # type: ignore[misc]


def _text(number: int, piece: str) -> Make:
    return lambda size: record(number, filled(piece, size).encode())


def _scalar(number: int, wire: int, value: int) -> bytes:
    tag = varint(number << 3 | wire)
    if wire == _VARINT:
        return tag + varint(value)
    text = str(value).encode() if value else b""
    sizes = {_FIXED32: value.to_bytes(4, "little"), _FIXED64: value.to_bytes(8, "little")}
    return tag + sizes.get(wire, varint(len(text)) + text)


def _times(one: bytes, size: int) -> bytes:
    return one * max(1, size // len(one))


def _counted(field: FieldDescriptor, wire: int, size: int) -> bytes:
    """Returns elements that all differ: numbers, texts, keys; messages with an unlike field."""
    made, total, value = [], 0, 0
    while total < size:
        value += 1
        if field.message_type is None:
            one = _scalar(field.number, wire, value)
        else:
            first = field.message_type.fields[0] if field.message_type.fields else None
            inner = _scalar(first.number, _WIRE.get(first.type, 0), value) if first else b""
            one = record(field.number, inner)
        made.append(one)
        total += len(one)
    return b"".join(made)


def _nested(number: int, message: Descriptor | None, size: int) -> bytes:
    """Returns a message within itself, by the shortest way that its type has, over and over."""
    loop = () if message is None else _loop(message, message, ())
    payload = b""
    for _ in range(NESTED // max(1, len(loop)) if loop else 0):
        for inner in reversed(loop):
            payload = record(inner.number, payload)
    return _times(record(number, payload), size)


def _loop(message: Descriptor, sought: Descriptor, way: Path) -> Path:
    """Returns the fields that lead from a message to the one that is sought, or nothing."""
    if len(way) > MAX_DEPTH:
        return ()
    for field in message.fields:
        if field.message_type is sought:
            return (*way, field)
    for field in message.fields:
        if field.message_type is not None and field not in way:
            found = _loop(field.message_type, sought, (*way, field))
            if found:
                return found
    return ()

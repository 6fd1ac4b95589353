"""Bytes of every message of a released contract, with every field set, and what they say as JSON.

A file for each release, a line for each message; a message with a oneof has one for each of its
members. Written when a release is made, by scripts/release_contract.py, and never again.

Of 0.1.0 the public package is kept alone: the internal ones changed in ways that break them once
after it, and are compared from the next release on.
"""

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from google.protobuf import json_format
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.inference.v1 import inference_pb2
from signalbox_protos.recording.v1 import recording_pb2
from signalbox_protos.scheduler.v1 import explain_pb2, scheduler_pb2, state_pb2, stats_pb2
from signalbox_protos.worker.v1 import worker_pb2

FILES = (
    inference_pb2,
    common_pb2,
    scheduler_pb2,
    explain_pb2,
    recording_pb2,
    state_pb2,
    stats_pb2,
    worker_pb2,
)
FOLDER = Path(__file__).parent / "corpus"
_INTEGERS = (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_INT64)
_UNSIGNED = (FieldDescriptor.CPPTYPE_UINT32, FieldDescriptor.CPPTYPE_UINT64)
_FLOATS = (FieldDescriptor.CPPTYPE_FLOAT, FieldDescriptor.CPPTYPE_DOUBLE)


class Specimen(NamedTuple):
    """One message as it was written."""

    name: str
    data: bytes
    content: dict[str, Any]


def read(path: Path) -> list[Specimen]:
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return [Specimen(one["message"], base64.b64decode(one["data"]), one["json"]) for one in lines]


def write(path: Path) -> None:
    """Writes the specimens of the contract as it is now."""
    with path.open("w", encoding="utf-8") as file:
        for message in specimens():
            entry = {
                "message": message.DESCRIPTOR.full_name,
                "data": base64.b64encode(message.SerializeToString(deterministic=True)).decode(),
                "json": content_of(message),
            }
            print(json.dumps(entry, sort_keys=True), file=file)


def content_of(message: Message) -> dict[str, Any]:
    """Returns what a message says, under the names of its fields."""
    content: dict[str, Any] = json_format.MessageToDict(message, preserving_proto_field_name=True)
    return content


def message_class(name: str) -> type[Message]:
    """Raises KeyError for a message that is no more."""
    return GetMessageClass(inference_pb2.DESCRIPTOR.pool.FindMessageTypeByName(name))


def specimens() -> Iterator[Message]:
    for file in FILES:
        for descriptor in file.DESCRIPTOR.message_types_by_name.values():
            yield from _variants(descriptor)


def _variants(descriptor: Descriptor) -> Iterator[Message]:
    """Yields as many messages as it takes for each field to be set in one."""
    choices = max((len(oneof.fields) for oneof in descriptor.oneofs), default=1)
    for choice in range(choices):
        message = GetMessageClass(descriptor)()
        _fill(message, choice=choice, depth=1)
        yield message


def _fill(message: Message, *, choice: int, depth: int) -> None:
    for field in message.DESCRIPTOR.fields:
        oneof = field.containing_oneof
        if oneof is not None and oneof.fields[choice % len(oneof.fields)] is not field:
            continue
        if field.message_type is None:
            _set_scalar(message, field)
        elif depth:
            _fill_submessage(message, field, depth=depth - 1)


def _fill_submessage(message: Message, field: FieldDescriptor, *, depth: int) -> None:
    held = getattr(message, field.name)
    entry = field.message_type
    if entry.GetOptions().map_entry:
        key = _value(entry.fields_by_name["key"])
        if entry.fields_by_name["value"].message_type is None:
            held[key] = _value(entry.fields_by_name["value"])
        else:
            _fill(held[key], choice=2, depth=depth)
        return
    one = held.add() if field.is_repeated else held
    one.SetInParent()
    _fill(one, choice=0, depth=depth)


def _set_scalar(message: Message, field: FieldDescriptor) -> None:
    if field.is_repeated:
        getattr(message, field.name).append(_value(field))
    else:
        setattr(message, field.name, _value(field))


def _value(field: FieldDescriptor) -> Any:
    """Returns a value that is no default, and differs between the fields of a message."""
    number = field.number
    if field.cpp_type in _INTEGERS:
        return -number
    if field.cpp_type in _UNSIGNED:
        return number + 300
    if field.cpp_type in _FLOATS:
        return number + 0.5
    if field.cpp_type == FieldDescriptor.CPPTYPE_BOOL:
        return True
    if field.cpp_type == FieldDescriptor.CPPTYPE_ENUM:
        values = field.enum_type.values
        return values[1 + number % (len(values) - 1)].number
    text = f"{field.name} {number} é"
    return text.encode() if field.type == FieldDescriptor.TYPE_BYTES else text

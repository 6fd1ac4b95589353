"""Messages in JSON are those of protobuf's own library."""

import json
import math
from random import Random
from typing import Any

import pytest
from google.protobuf import json_format
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import stats_pb2
from signalbox_router.apis.connect import json_codec

KINDS = [pb.GenerateResponse, pb.ChatRequest, pb.EmbedResponse, pb.GetModelResponse,
         pb.GetLoadResponse, stats_pb2.GetStatsResponse]  # fmt: skip
VALUES: dict[int, list[Any]] = {
    FieldDescriptor.CPPTYPE_STRING: ["", "a", '"\\\n\0', "東京😀"],
    FieldDescriptor.CPPTYPE_BOOL: [False, True],
    FieldDescriptor.CPPTYPE_FLOAT: [0.0, -0.1, 1e-30, math.inf, -math.inf],
    FieldDescriptor.CPPTYPE_DOUBLE: [0.0, -0.1, 1e300, math.inf],
    FieldDescriptor.CPPTYPE_UINT32: [0, 7, (1 << 32) - 1],
    FieldDescriptor.CPPTYPE_INT32: [0, -7, (1 << 31) - 1],
    FieldDescriptor.CPPTYPE_UINT64: [0, (1 << 64) - 1],
    FieldDescriptor.CPPTYPE_INT64: [0, -(1 << 63)],
    FieldDescriptor.CPPTYPE_ENUM: [0, 1, 2, 77],
}


def fill(message: Message, random: Random, depth: int = 0) -> None:
    """Sets some fields of a message, and of those in it."""
    for field in message.DESCRIPTOR.fields:
        kind = field.message_type
        if random.random() < 0.4 or depth > 5:
            continue
        if kind is not None and kind.GetOptions().map_entry:
            _fill_map(getattr(message, field.name), kind, random)
        elif kind is not None:
            for _ in range(random.randrange(3) if field.is_repeated else 1):
                owned: Any = getattr(message, field.name)
                fill(owned.add() if field.is_repeated else owned, random, depth + 1)
                if not field.is_repeated:
                    owned.SetInParent()
        elif field.is_repeated:
            getattr(message, field.name).extend(random.choices(_values(field), k=2))
        else:
            setattr(message, field.name, random.choice(_values(field)))


def _values(field: Any) -> list[Any]:
    if field.type == FieldDescriptor.TYPE_BYTES:
        return [b"", b"\xff\0"]
    return VALUES[field.cpp_type]


def _fill_map(entries: Any, kind: Any, random: Random) -> None:
    key, value = kind.fields
    name = random.choice(_values(key))
    if value.message_type is None:
        entries[name] = random.choice(_values(value))
    else:
        entries[name].SetInParent()


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.DESCRIPTOR.name)
@given(random=st.randoms(use_true_random=False))
def test_what_is_written_is_what_the_library_writes(kind: Any, random: Random) -> None:
    message = kind()
    fill(message, random)
    for one in _durations(message):
        one.FromNanoseconds(random.randrange(1 << 40))
    written = json_codec.write(message)
    theirs = json.loads(json_format.MessageToJson(message))
    assert _in_short(json.loads(written)) == _in_short(theirs)
    if kind is not pb.ChatRequest:  # whose values may have no kind
        assert json_codec.read(written, kind, ignores_unknown=False) == message


def _durations(message: Message) -> list[Any]:
    """Returns the durations in a message, which must be in their range to be written."""
    if message.DESCRIPTOR.full_name == "google.protobuf.Duration":
        return [message]
    found = []
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for one in value if field.is_repeated else [value]:
                found += _durations(one)
    return found


def _in_short(value: Any) -> Any:
    """Returns a value of JSON with numbers in the digits that 32 bits have."""
    if isinstance(value, dict):
        return {name: _in_short(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_in_short(one) for one in value]
    return f"{value:.6g}" if isinstance(value, float) else value

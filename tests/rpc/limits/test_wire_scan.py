"""Fields are counted from the bytes of a message, as a parser would find them."""

import pytest
from google.protobuf.message import Message
from hypothesis import given
from hypothesis import strategies as st

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_rpc.limits.wire_scan import TooManyFields, check_num_fields


def num_fields(message: Message) -> int:
    """Returns what the wire has of a message: each packed list, and each item of other lists."""
    count = 0
    for field, value in message.ListFields():
        values = value if field.is_repeated and not field.is_packed else [value]
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            count += sum(3 + num_fields(value[key]) for key in value)
        elif field.message_type is not None:
            count += sum(1 + num_fields(one) for one in values)
        else:
            count += len(values)
    return count


def make_chat(messages: int, parts: int, tools: int, kwargs: int, ids: int) -> pb.ChatRequest:
    request = pb.ChatRequest(
        messages=[
            pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=[pb.ContentPart(text="a")] * parts)
            for _ in range(messages)
        ],
        tools=[pb.Tool()] * tools,
        sampling_params=pb.SamplingParams(temperature=0.5, stop_token_ids=range(ids), n=300),
    )
    for i in range(kwargs):
        request.chat_template_kwargs[f"v{i}"].list_value.values.add().number_value = i
    return request


COUNTS = st.integers(0, 5)


@given(messages=COUNTS, parts=COUNTS, tools=COUNTS, kwargs=COUNTS, ids=st.integers(0, 200))
def test_the_count_is_that_of_the_message(
    messages: int, parts: int, tools: int, kwargs: int, ids: int
) -> None:
    request = make_chat(messages, parts, tools, kwargs, ids)
    data, count = request.SerializeToString(), num_fields(request)
    check_num_fields(data, request.DESCRIPTOR, most=count)
    with pytest.raises(TooManyFields):
        check_num_fields(data, request.DESCRIPTOR, most=count - 1)


@given(data=st.binary(max_size=100), cut=st.integers(0, 100))
def test_bytes_that_are_no_message_are_left_to_the_parser(data: bytes, cut: int) -> None:
    check_num_fields(data, pb.ChatRequest.DESCRIPTOR, most=1000)
    whole = make_chat(2, 2, 2, 2, 50).SerializeToString()
    check_num_fields(whole[:cut] + data, pb.ChatRequest.DESCRIPTOR, most=1000)


def test_the_outermost_field_that_holds_too_much_is_named() -> None:
    for request, name in (
        (make_chat(1, 500, 1, 1, 1), "messages"),
        (make_chat(1, 1, 500, 1, 1), "tools"),
        (make_chat(1, 1, 1, 500, 1), "chat_template_kwargs"),
    ):
        with pytest.raises(TooManyFields) as refused:
            check_num_fields(request.SerializeToString(), request.DESCRIPTOR, most=100)
        assert refused.value.name == name
    with pytest.raises(TooManyFields) as refused:
        check_num_fields(b"\xf8\x7f\x01" * 101, pb.ChatRequest.DESCRIPTOR, most=100)
    assert refused.value.name == ""


def test_a_long_text_and_a_packed_list_are_one_field_each() -> None:
    text = pb.GenerateRequest(text="a" * (1 << 20)).SerializeToString()
    check_num_fields(text, pb.GenerateRequest.DESCRIPTOR, most=1)
    ids = pb.GenerateRequest(token_ids=pb.TokenIds(ids=range(131_071))).SerializeToString()
    check_num_fields(ids, pb.GenerateRequest.DESCRIPTOR, most=2)

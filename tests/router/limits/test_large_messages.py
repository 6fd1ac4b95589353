"""Large requests over gRPC: counted before they are parsed, and parsed beside the event loop."""

import gc
import json
import threading
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from google.protobuf import struct_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_router.apis.inference import chat_codec
from signalbox_router.apis.inference.servicer import SERVICE_NAME
from signalbox_router.limits.json_text import MAX_DEPTH
from signalbox_router.prompt.chat.conversation import MAX_MESSAGES, MAX_PARTS, MAX_TOOLS
from signalbox_rpc.limits import large_messages, large_requests
from tests.grpc_errors import code_of
from tests.router.apis.inference.test_chat import TEMPLATE, chat_stack, make_chat, message
from tests.router.fakes import make_files
from tests.router.stack import Stack, make_stack, saying
from tests.waiting import eventually, run_ready_tasks

StatusCode = grpc.StatusCode
FULL = 2
"""The oldest generation, with which all objects are collected."""
EMPTY_TOOL, EMPTY_MESSAGE = b"\x62\x00", b"\x1a\x00"


async def refused(stack: Stack, request: pb.ChatRequest | bytes, method: str = "Chat") -> str:
    """Returns the message; the code is checked."""
    data = request if isinstance(request, bytes) else request.SerializeToString()
    call = stack.channel.unary_stream(f"/{SERVICE_NAME}/{method}")
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in call(data):
            pass
    assert caught.value.code() is StatusCode.INVALID_ARGUMENT, caught.value
    return caught.value.details() or ""


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[threading.Thread]]:
    """The threads in which large messages were parsed."""
    threads: list[threading.Thread] = []
    parse = large_messages._parsed

    def noted(data: bytes, kind: Any) -> Any:
        threads.append(threading.current_thread())
        return parse(data, kind)

    monkeypatch.setattr(large_messages, "_parsed", noted)
    yield threads


def variables(count: int) -> dict[str, struct_pb2.Value]:
    values = [struct_pb2.Value(number_value=i) for i in range(count)]
    return {"v": struct_pb2.Value(list_value=struct_pb2.ListValue(values=values))}


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        (EMPTY_TOOL * 400_000, "tools"),
        (EMPTY_TOOL * 200_000, "tools"),
        (EMPTY_TOOL * (MAX_TOOLS + 1), "tools"),
        (EMPTY_MESSAGE * 400_000, "messages"),
        (EMPTY_MESSAGE * MAX_MESSAGES, "messages"),
        (pb.ChatRequest(chat_template_kwargs=variables(200_000)).SerializeToString(), "kwargs"),
        (pb.ChatRequest(chat_template_kwargs=variables(20_000)).SerializeToString(), "kwargs"),
        (
            make_chat(
                pb.ChatMessage(
                    role=pb.CHAT_ROLE_USER, content=[pb.ContentPart(text="")] * (MAX_PARTS + 1)
                )
            ).SerializeToString(),
            "messages[1].content",
        ),
    ],
)
async def test_items_are_counted_before_anything_is_made_of_them(
    extra: bytes, field: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[object] = []
    monkeypatch.setattr(chat_codec, "_tool", lambda *args: made.append(args))
    async with chat_stack() as stack:
        data = make_chat(message("Hi")).SerializeToString() + extra
        assert field in await refused(stack, data)
    assert not made


async def test_a_large_message_is_parsed_beside_the_event_loop(
    parsers: list[threading.Thread],
) -> None:
    async with make_stack(saying("ok"), max_model_len=131_072) as stack:
        ids = pb.TokenIds(ids=[5] * 131_071)
        last = (await stack.generate(token_ids=ids))[-1]
        assert last.outputs[0].text == "ok"
        assert list(stack.scheduler.added[-1].prompt_token_ids) == ids.ids
        assert threading.main_thread() not in parsers
        assert len(parsers) == 1
        await stack.generate(token_ids=pb.TokenIds(ids=[5] * 1000))
        assert len(parsers) == 1


async def test_a_large_message_that_is_none_is_counted_as_one_that_was_not_read(
    stack: Stack,
) -> None:
    for method in ("Generate", "Chat", "Tokenize"):
        assert "no valid message" in await refused(stack, b"\xff" * 100_000, method)
    metrics = stack.router.registry.collect()
    counted = [one for family in metrics for one in family.samples if "INVALID" in str(one.labels)]
    assert sum(one.value for one in counted) >= 2


@pytest.fixture
def full_collections() -> Iterator[list[str]]:
    """The pools of threads in which all objects were collected, each time after 200 new ones.

    Python delays full collections until a quarter of the objects is new, and frozen ones are not
    counted.
    """
    threads: list[str] = []

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "stop" and info["generation"] == FULL:
            threads.append(threading.current_thread().name.partition("_")[0])

    gc.freeze()
    gc.collect()
    usual = gc.get_threshold()
    gc.set_threshold(100, 1, 1)
    gc.callbacks.append(note)
    yield threads
    gc.callbacks.remove(note)
    gc.set_threshold(*usual)
    gc.unfreeze()


@pytest.mark.parametrize("template", [None, "{{ messages | length }}"])
async def test_many_messages_do_not_bring_about_full_collections(
    template: str | None, full_collections: list[str]
) -> None:
    files = make_files(chat_template=TEMPLATE)
    async with make_stack(saying("ok"), files=files, max_model_len=131_072) as stack:
        request = make_chat(*[message("a")] * 5_000, chat_template=template)
        full_collections.clear()
        assert [one async for one in stack.client.Chat(request)]
        there = [thread for thread in full_collections if thread in {"asyncio", "tokenizer"}]
        # Before and after what is delayed a thread may happen to be the one that collects. Without
        # delays there are eleven and sixteen collections.
        assert len(there) <= 4


async def test_long_requests_are_held_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "MAX_HELD_BYTES", 200_000)
    async with make_stack(saying("ok"), max_model_len=131_072) as stack:
        assert await stack.generate(token_ids=pb.TokenIds(ids=[5] * 100_000))
        more = stack.generate(token_ids=pb.TokenIds(ids=[300] * 110_000))
        assert await code_of(more) is StatusCode.RESOURCE_EXHAUSTED
        assert await stack.generate(token_ids=pb.TokenIds(ids=[5] * 100_000))


async def test_a_cancelled_call_keeps_its_place_until_its_thread_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun, may_end, parse = [], threading.Event(), large_messages._parsed

    def held(data: bytes, kind: Any) -> Any:
        begun.append(kind)
        may_end.wait()
        return parse(data, kind)

    monkeypatch.setattr(large_messages, "_parsed", held)
    async with make_stack(saying("ok"), max_model_len=131_072) as stack:

        def generate() -> Any:
            return stack.client.Generate(
                pb.GenerateRequest(token_ids=pb.TokenIds(ids=[5] * 50_000))
            )

        for call in [generate() for _ in range(large_requests.MAX_PARSED_AT_ONCE)]:
            await eventually(lambda: len(begun) == large_requests.MAX_PARSED_AT_ONCE)
            call.cancel()
        other = generate()
        try:
            assert await stack.generate(token_ids=pb.TokenIds(ids=[5]))  # the others have arrived
            await run_ready_tasks()
            assert len(begun) == large_requests.MAX_PARSED_AT_ONCE
        finally:
            may_end.set()
        assert [one async for one in other]


def nested(levels: int) -> str:
    return '{"a":' * (levels - 1) + "{}" + "}" * (levels - 1)


@pytest.mark.parametrize("choice", [pb.TOOL_CHOICE_MODE_AUTO, pb.TOOL_CHOICE_MODE_REQUIRED])
async def test_json_of_tools_is_nested_so_far_and_no_further(choice: Any) -> None:
    async with chat_stack() as stack:
        for levels in (MAX_DEPTH + 1, 900, *range(960, 1000, 3), 5000, 100_000):
            tools = [pb.Tool(name="t", parameters=nested(levels))]
            request = make_chat(message("Hi"), tools=tools, tool_choice=pb.ToolChoice(mode=choice))
            assert "tools[0].parameters" in await refused(stack, request), levels


async def test_json_of_tools_and_calls_at_the_edge_is_served() -> None:
    files = make_files(chat_template=TEMPLATE)
    async with make_stack(saying("ok"), files=files, max_model_len=16_384) as stack:
        tools = [pb.Tool(name="t", parameters=nested(MAX_DEPTH))]
        call = pb.ToolCall(id="1", name="t", arguments=nested(MAX_DEPTH))
        said = pb.ChatMessage(role=pb.CHAT_ROLE_ASSISTANT, tool_calls=[call])
        request = make_chat(message("Hi"), said, message("Go on"), tools=tools)
        assert [one async for one in stack.client.Chat(request)]


@pytest.mark.parametrize("keyword", ["$defs", "definitions"])
@pytest.mark.parametrize("value", [None, ["a"], "a", 3, True])
async def test_definitions_that_are_no_object_are_a_clients_mistake(
    keyword: str, value: object
) -> None:
    schema = {"type": "object", keyword: value}
    async with chat_stack() as stack:
        request = make_chat(
            message("Hi"),
            tools=[pb.Tool(name="t", parameters=json.dumps(schema))],
            tool_choice=pb.ToolChoice(mode=pb.TOOL_CHOICE_MODE_REQUIRED),
        )
        refusal = await refused(stack, request)
        assert refusal.startswith("tools[0].parameters: ")
        assert f'"{keyword}" must be an object' in refusal


def test_json_text_of_too_many_values_is_refused_before_it_is_parsed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parsed: list[str] = []
    monkeypatch.setattr("signalbox_router.limits.json_text.json.loads", parsed.append)
    text = '{"enum":[' + "0," * 400_000 + "0]}"
    request = make_chat(message("Hi"), tools=[pb.Tool(name="t", parameters=text)])
    with pytest.raises(chat_codec.InvalidArgument, match="400002 values"):
        chat_codec.conversation(request)
    assert not parsed

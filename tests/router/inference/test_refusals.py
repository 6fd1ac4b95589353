"""What is refused, at the door or by the scheduler, and with which status."""

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from protos.inference.v1 import inference_pb2 as pb
from protos.scheduler.v1 import scheduler_pb2
from router.inference.servicer import SERVICE_NAME
from tests.router.fakes import (
    MAX_MODEL_LEN,
    finished,
    ids_of,
    make_files,
    request_finished,
    step,
)
from tests.router.stack import Outputs, code_of, details_of, make_generate, make_stack, saying

StatusCode = grpc.StatusCode


async def test_the_id_of_a_live_request_is_taken() -> None:
    async with make_stack() as stack:
        first = asyncio.create_task(stack.generate(request_id="a"))
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        assert await code_of(stack.generate(request_id="a")) is StatusCode.ALREADY_EXISTS
        handle = stack.scheduler.added[0].handle
        stack.scheduler.send(step((handle, 0, ids_of("ok")), **finished(handle)))
        assert (await first)[-1].outputs[0].text == "ok"
        stack.scheduler.script = saying("again")
        assert (await stack.generate(request_id="a"))[-1].outputs[0].text == "again"


async def test_too_many_requests_are_shed_with_retry_info() -> None:
    async with make_stack(max_live_requests=1) as stack:
        call = stack.client.Generate(make_generate())
        await stack.scheduler.wait_until(lambda: bool(stack.scheduler.added))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate()
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        (detail,) = details_of(caught.value).details
        assert detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        call.cancel()


@pytest.mark.parametrize(
    ("fields", "code", "field"),
    [
        ({"text": ""}, StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a b " * 200}, StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a" * 3_000_000}, StatusCode.INVALID_ARGUMENT, "text"),
        ({"text": "a" * (5 << 20)}, StatusCode.RESOURCE_EXHAUSTED, None),
        ({"token_ids": pb.TokenIds()}, StatusCode.INVALID_ARGUMENT, "token_ids.ids"),
        ({"token_ids": pb.TokenIds(ids=[10**6])}, StatusCode.INVALID_ARGUMENT, "token_ids.ids"),
        ({"token_ids": pb.TokenIds(ids=[5] * 128)}, StatusCode.INVALID_ARGUMENT, "token_ids.ids"),
        ({"request_id": "a\nb"}, StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "a\0b"}, StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"request_id": "a" * 10**6}, StatusCode.INVALID_ARGUMENT, "request_id"),
        ({"model": "../../etc/passwd"}, StatusCode.NOT_FOUND, None),
        (
            {"truncate_prompt_tokens": 0},
            StatusCode.INVALID_ARGUMENT,
            "truncate_prompt_tokens",
        ),
        ({"stream_interval": 0}, StatusCode.INVALID_ARGUMENT, "stream_interval"),
        ({"output_kind": 9}, StatusCode.INVALID_ARGUMENT, "output_kind"),
        (
            {"sampling_params": pb.SamplingParams(top_p=0)},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.top_p",
        ),
        (
            {"sampling_params": pb.SamplingParams(presence_penalty=2.5)},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.presence_penalty",
        ),
        (
            {"sampling_params": pb.SamplingParams(bad_words=[" "])},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.bad_words",
        ),
        (
            {"sampling_params": pb.SamplingParams(logit_bias=[pb.LogitBias(token_id=10**6)])},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.logit_bias.token_id",
        ),
        (
            {"sampling_params": pb.SamplingParams(structured_output=pb.StructuredOutput())},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.structured_output",
        ),
        (
            {
                "sampling_params": pb.SamplingParams(
                    structured_output=pb.StructuredOutput(json_schema='{"$ref": "#"}')
                )
            },
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.structured_output.json_schema",
        ),
        (
            {"sampling_params": pb.SamplingParams(max_tokens=MAX_MODEL_LEN)},
            StatusCode.INVALID_ARGUMENT,
            "sampling_params.max_tokens",
        ),
    ],
)
async def test_what_is_wrong_is_refused_at_the_door(
    fields: dict[str, Any], code: StatusCode, field: str | None
) -> None:
    async with make_stack() as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate(**fields)
        assert caught.value.code() is code
        if field is not None:
            bad = error_details_pb2.BadRequest()
            details_of(caught.value).details[0].Unpack(bad)
            assert [violation.field for violation in bad.field_violations] == [field]
        assert stack.scheduler.added == []


USER = pb.CHAT_ROLE_USER


HELLO = [pb.ContentPart(text="Hi")]


@pytest.mark.parametrize(
    ("messages", "code"),
    [
        ([], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(content=HELLO)], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(role=77, content=HELLO)], StatusCode.INVALID_ARGUMENT),  # type: ignore[arg-type]
        ([pb.ChatMessage(role=USER)], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(role=USER, content=[pb.ContentPart()])], StatusCode.INVALID_ARGUMENT),
        ([pb.ChatMessage(role=USER, content=HELLO)] * 500, StatusCode.INVALID_ARGUMENT),
    ],
)
async def test_a_bad_conversation_is_refused(
    messages: list[pb.ChatMessage], code: StatusCode
) -> None:
    async with make_stack() as stack:
        call = aiter(stack.client.Chat(pb.ChatRequest(messages=messages)))
        assert await code_of(anext(call)) is code
        assert stack.scheduler.added == []


async def test_chat_without_a_template_is_a_failed_precondition() -> None:
    async with make_stack(files=make_files(chat_template=None)) as stack:
        turn = pb.ChatMessage(role=pb.CHAT_ROLE_USER, content=[pb.ContentPart(text="Hi")])
        call = aiter(stack.client.Chat(pb.ChatRequest(messages=[turn])))
        assert await code_of(anext(call)) is StatusCode.FAILED_PRECONDITION
        assert not (await stack.client.GetModel(pb.GetModelRequest())).has_chat_template


async def test_malformed_bytes_are_an_invalid_argument() -> None:
    async with make_stack() as stack:
        for data in (b"", b"\xff" * 50, b"\x1a\x05ab", b"\x0a\x02\xff\xfe"):
            for method in ("Generate", "Chat"):
                send: Any = stack.channel.unary_stream(f"/{SERVICE_NAME}/{method}")
                call = aiter(send(data))
                assert await code_of(anext(call)) is StatusCode.INVALID_ARGUMENT


async def test_a_request_that_the_scheduler_refuses_fails_with_its_status() -> None:
    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        end = request_finished(
            add.handle, code=8, message="never fits", retry_after_ns=1_500_000_000
        )
        yield step(requests=[end])

    async with make_stack(script) as stack:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate()
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert caught.value.details() == "never fits"
        retry = error_details_pb2.RetryInfo()
        assert details_of(caught.value).details[0].Unpack(retry)
        assert retry.retry_delay.ToNanoseconds() == 1_500_000_000


async def test_a_failed_sequence_is_the_status_of_a_request_of_one() -> None:
    def script(add: scheduler_pb2.AddRequest) -> Outputs:
        error = scheduler_pb2.FinishedSequence(
            handle=add.handle, reason=scheduler_pb2.FINISH_REASON_ERROR, error_message="NaN"
        )
        yield step(sequences=[error])
        yield step(requests=[request_finished(add.handle, code=13, message="NaN")])

    async with make_stack(script) as stack:
        assert await code_of(stack.generate()) is StatusCode.INTERNAL

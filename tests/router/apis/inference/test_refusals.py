"""What is refused, at the door or by the scheduler, and with which status.

`tests/integration/fuzzing` has what each field may not be.
"""

import asyncio
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from tests.grpc_errors import code_of, details_of, error_of
from tests.router.apis.inference.test_chat import make_chat
from tests.router.fakes import (
    finished,
    ids_of,
    make_files,
    request_finished,
    step,
)
from tests.router.stack import Outputs, Stack, make_generate, make_stack, saying

StatusCode = grpc.StatusCode


async def test_the_id_of_a_live_request_is_taken(stack: Stack) -> None:
    first = asyncio.create_task(stack.generate(request_id="a"))
    await stack.added()
    assert await code_of(stack.generate(request_id="a")) is StatusCode.ALREADY_EXISTS
    handle = stack.scheduler.added[0].handle
    stack.scheduler.send(step((handle, 0, ids_of("ok")), **finished(handle)))
    assert (await first)[-1].outputs[0].text == "ok"
    stack.scheduler.script = saying("again")
    assert (await stack.generate(request_id="a"))[-1].outputs[0].text == "again"


async def test_too_many_requests_are_shed_with_retry_info() -> None:
    async with make_stack(max_live_requests=1) as stack:
        call = stack.client.Generate(make_generate())
        await stack.added()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stack.generate()
        assert caught.value.code() is StatusCode.RESOURCE_EXHAUSTED
        assert "takes 1 request at a time" in str(caught.value.details())
        (detail,) = details_of(caught.value).details
        assert detail.Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        call.cancel()


async def refused_fields(call: Any) -> list[str]:
    error = await error_of(call)
    assert error.code() is StatusCode.INVALID_ARGUMENT
    bad = error_details_pb2.BadRequest()
    details_of(error).details[0].Unpack(bad)
    return [violation.field for violation in bad.field_violations]


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"text": "a b " * 200}, "text"),
        ({"text": "a" * 3_000_000}, "text"),
        ({"token_ids": {}}, "token_ids.ids"),
        ({"token_ids": {"ids": [5] * 128}}, "token_ids.ids"),
    ],
)
async def test_what_is_wrong_is_refused_at_the_door(
    stack: Stack, fields: dict[str, Any], field: str
) -> None:
    assert await refused_fields(stack.generate(**fields)) == [field]
    assert stack.scheduler.added == []


async def test_a_text_beyond_all_bounds_and_a_model_that_is_not_served(stack: Stack) -> None:
    assert await code_of(stack.generate(text="a" * (5 << 20))) is StatusCode.RESOURCE_EXHAUSTED
    assert await code_of(stack.generate(model="../../etc/passwd")) is StatusCode.NOT_FOUND
    assert stack.scheduler.added == []


USER = pb.CHAT_ROLE_USER
HELLO = [pb.ContentPart(text="Hi")]


@pytest.mark.parametrize("messages", [[], [pb.ChatMessage(role=USER, content=HELLO)] * 500])
async def test_a_bad_conversation_is_refused(stack: Stack, messages: list[pb.ChatMessage]) -> None:
    call = aiter(stack.client.Chat(pb.ChatRequest(messages=messages)))
    assert await code_of(anext(call)) is StatusCode.INVALID_ARGUMENT
    assert stack.scheduler.added == []


async def test_chat_without_a_template_is_a_failed_precondition() -> None:
    async with make_stack(files=make_files(chat_template=None)) as stack:
        call = aiter(stack.client.Chat(make_chat()))
        assert await code_of(anext(call)) is StatusCode.FAILED_PRECONDITION
        assert not (await stack.client.GetModel(pb.GetModelRequest())).has_chat_template


async def test_a_request_that_the_scheduler_refuses_fails_with_its_status() -> None:
    def script(add: scheduler_pb2.Request) -> Outputs:
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
    def script(add: scheduler_pb2.Request) -> Outputs:
        error = scheduler_pb2.FinishedSequence(
            handle=add.handle, reason=scheduler_pb2.FINISH_REASON_ERROR, error_message="NaN"
        )
        yield step(sequences=[error])
        yield step(requests=[request_finished(add.handle, code=13, message="NaN")])

    async with make_stack(script) as stack:
        assert await code_of(stack.generate()) is StatusCode.INTERNAL

"""A scheduler that breaks, goes away or has no worker: what clients see, and that it is mended."""

import asyncio
import gc
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.generation.request_admission import EncodedPrompt
from signalbox_router.limits.payers import Payer
from signalbox_router.schedulers import scheduler_client
from signalbox_rpc.transport.tls import TlsError
from tests.grpc_errors import code_of, details_of
from tests.ports import free_port
from tests.router.fakes import (
    MODEL_NAME,
    FakeScheduler,
)
from tests.router.stack import Stack, make_config, make_stack, routed, saying
from tests.waiting import EVENT_S, eventually

StatusCode = grpc.StatusCode


async def test_a_broken_stream_ends_its_requests_and_is_mended() -> None:
    async with make_stack(resume_wait=0.0) as stack:
        call = asyncio.create_task(stack.generate())
        await stack.added()
        stack.scheduler.end_stream()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is StatusCode.UNAVAILABLE
        assert details_of(caught.value).details[0].Is(error_details_pb2.RetryInfo.DESCRIPTOR)
        await stack.wait_serving()
        stack.scheduler.script = saying("back")
        assert (await stack.generate())[-1].outputs[0].text == "back"
        assert stack.scheduler.num_tokenizer_calls == 1  # the same tokenizer is kept


async def test_certificates_that_cannot_be_read_for_a_moment_are_read_again(
    stack: Stack, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    has_failed = asyncio.Event()
    open_channel = scheduler_client.open_channel

    def open_later(*args: Any, **options: Any) -> grpc.aio.Channel:
        if not has_failed.is_set():
            has_failed.set()
            raise TlsError("half a certificate")
        return open_channel(*args, **options)

    monkeypatch.setattr(scheduler_client, "open_channel", open_later)
    stack.scheduler.end_stream()
    await asyncio.wait_for(has_failed.wait(), EVENT_S)
    await stack.wait_serving()
    assert "half a certificate" in caplog.text


async def test_messages_are_signs_of_life_without_heartbeats(stack: Stack) -> None:
    """A heartbeat waits behind the messages before it."""
    interval_s = 0.2
    silence_s = scheduler_client.MISSED_HEARTBEATS * interval_s
    stack.scheduler.beat(interval_s=interval_s)
    for _ in range(30):
        stack.scheduler.say_model_changed()
        await asyncio.sleep(silence_s / 10)
    assert stack.scheduler.num_streams == 1
    await eventually(lambda: stack.scheduler.num_streams == 2)
    await stack.wait_serving()


async def test_columns_that_make_no_sense_break_the_stream_only(stack: Stack) -> None:
    call = asyncio.create_task(stack.generate())
    await stack.added()
    stack.scheduler.send(scheduler_pb2.RequestUpdates(handles=b"abc"))
    assert await code_of(call) is StatusCode.UNAVAILABLE
    await stack.wait_serving()


async def test_a_killed_scheduler_turns_health_until_it_is_back() -> None:
    async with make_stack(scheduler_port=free_port()) as stack:
        await stack.scheduler.stop()
        await stack.wait_serving(False)
        assert await code_of(stack.generate()) is StatusCode.UNAVAILABLE
        asked = stack.client.GetModel(pb.GetModelRequest())
        assert await code_of(asked) is StatusCode.UNAVAILABLE
        await stack.scheduler.start()
        await stack.wait_serving()


async def test_health_follows_the_last_worker() -> None:
    async with make_stack(saying("x")) as stack:
        stack.scheduler.has_worker = False
        await stack.wait_serving(False)
        assert await code_of(stack.generate()) is StatusCode.UNAVAILABLE
        stack.scheduler.model_name = "other"
        stack.scheduler.has_worker = True
        await stack.wait_serving()
        assert (await stack.client.GetModel(pb.GetModelRequest())).name == "other"
        await stack.generate(model="other")


async def test_the_router_waits_visibly(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    scheduler = FakeScheduler(port=free_port())
    scheduler.has_worker = False
    address = await scheduler.start()
    await scheduler.stop()
    async with routed(scheduler, make_config(address)) as stack:
        await stack.wait_serving(False)
        assert await code_of(stack.generate()) is StatusCode.UNAVAILABLE
        await wait_for_log(caplog, f"waiting for the scheduler at {address}")
        await scheduler.start()
        await wait_for_log(caplog, "waiting for a worker to register")
        asked = scheduler.num_model_calls
        await eventually(lambda: scheduler.num_model_calls > asked + 2)
        assert caplog.text.count("waiting for a worker to register") == 1
        scheduler.has_worker = True
        await stack.wait_serving()
        assert f"serving {MODEL_NAME}" in caplog.text


async def wait_for_log(caplog: pytest.LogCaptureFixture, text: str) -> None:
    await eventually(lambda: text in caplog.text)


async def test_a_model_that_changes_while_a_prompt_is_tokenised_gets_no_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with make_stack(saying("x")) as stack:
        tokenizing = asyncio.Event()
        go_on = asyncio.Event()

        async def tokenize(asked: object, model: object, *, payer: Payer) -> EncodedPrompt:
            tokenizing.set()
            await go_on.wait()
            return EncodedPrompt([5], "text")

        monkeypatch.setattr(stack.router.admission, "tokenize", tokenize)
        call = asyncio.create_task(stack.generate())
        await tokenizing.wait()
        stack.scheduler.model_name = "other"
        await eventually(lambda: stack.router.schedulers.models.of().name == "other")
        go_on.set()
        assert await code_of(call) is StatusCode.UNAVAILABLE
        assert stack.scheduler.added == []


async def test_tokenizer_files_that_cannot_be_read_are_waited_out(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level("INFO")
    scheduler = FakeScheduler()
    good, scheduler.files = scheduler.files, {"tokenizer.json": b"no tokenizer"}
    async with routed(scheduler, make_config(await scheduler.start())) as stack:
        await wait_for_log(caplog, "waiting for a usable model")
        scheduler.files = good
        await stack.wait_serving()


async def test_a_lost_stream_leaves_no_task_behind() -> None:
    """gRPC's poller, which all loops share, may complain of another test's closed loop."""
    complaints: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    async with make_stack(resume_wait=0.0, scheduler_port=free_port()) as stack:
        for _ in range(3):
            stack.scheduler.added.clear()
            call = asyncio.create_task(stack.generate())
            await stack.added()
            await stack.scheduler.stop()
            assert await code_of(call) is StatusCode.UNAVAILABLE
            await stack.wait_serving(False)
            await stack.scheduler.start()
            await stack.wait_serving()
        gc.collect()
        await asyncio.sleep(0.01)
    assert [context for context in complaints if {"task", "future"} & context.keys()] == []


async def test_a_request_that_cannot_be_encoded_is_not_kept(
    stack: Stack, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(request: object) -> None:
        raise ValueError("out of range")

    monkeypatch.setattr(scheduler_client, "encode_request", fail)
    assert await code_of(stack.generate()) is StatusCode.INTERNAL
    await stack.check_nothing_is_left()

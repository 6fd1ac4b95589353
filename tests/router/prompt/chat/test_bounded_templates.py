"""The model's own chat template takes no more time, memory and text than it may."""

import asyncio
import os

import grpc
import psutil
import pytest

from signalbox_protos.inference.v1 import inference_pb2_grpc
from tests.router.apis.inference.test_chat import (
    WEATHER,
    ask,
    chat_stack,
    make_chat,
    message,
    writing,
)
from tests.router.fakes import FakeScheduler, make_files
from tests.router.test_main import read_until, start_router
from tests.waiting import EVENT_S, eventually, wait_until_ended

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
BOMB = "{{ 'a' * 10**10 }}"
WORDY = "{% for i in range(99999) %}{{ 'a' * 1000 }}{% endfor %}"
GROWING = "{% set a = [0] %}{% for i in a %}{% set _ = a.append(i) %}{% endfor %}"
FAULTS = {
    ENDLESS: "more than 2 s",
    GROWING: "more than 2 s",
    BOMB: "more than 512 MiB",
    WORDY: "more than 1048576 bytes",
}
OF_ONE = "{% if messages[0].content == 'no' %}" + ENDLESS + "{% endif %}{{ messages[0].content }}"
LARGE = "{{[" + "0," * 32_000 + "]|length}}"
STATUS = grpc.StatusCode


def children(pid: int) -> list[psutil.Process]:
    return list(psutil.Process(pid).children(recursive=True))


async def refusal(call: "asyncio.Future[object]") -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await call
    return refused.value


@pytest.mark.parametrize("template", FAULTS)
async def test_a_template_that_exceeds_a_bound_of_a_greeting_turns_chat_off(template: str) -> None:
    async with chat_stack(template=template) as stack:
        error = await refusal(ask(stack, make_chat()))
        assert error.code() is STATUS.FAILED_PRECONDITION
        assert FAULTS[template] in (error.details() or "")
        assert (await stack.generate())[-1].outputs


async def test_others_are_answered_beside_a_conversation_that_makes_it_endless() -> None:
    async with chat_stack(template=OF_ONE) as stack:
        endless = [asyncio.ensure_future(ask(stack, make_chat(message("no")))) for _ in range(2)]
        await eventually(lambda: stack.router.live.num_live == len(endless))
        for _ in range(3):
            assert await ask(stack, make_chat())
        for error in [await refusal(one) for one in endless]:
            assert error.code() is STATUS.INVALID_ARGUMENT
            assert "more than 2 s" in (error.details() or "")
        assert await ask(stack, make_chat())


async def test_a_conversation_whose_process_was_killed_is_rendered_again() -> None:
    before = set(children(os.getpid()))
    async with chat_stack() as stack:
        started = set(children(os.getpid())) - before
        assert started
        asked = [asyncio.ensure_future(ask(stack, make_chat())) for _ in range(20)]
        for one in started:
            one.kill()
        answers = await asyncio.gather(*asked, ask(stack, make_chat()))
        assert all(answers)
        assert len({tuple(added.prompt_token_ids) for added in stack.scheduler.added}) == 1


async def test_a_template_that_takes_long_to_load_is_used() -> None:
    before = set(children(os.getpid()))
    async with chat_stack(template=LARGE) as stack:
        assert await ask(stack, make_chat())
        started = set(children(os.getpid())) - before
        assert {one.nice() for one in started} == {os.nice(0)}


async def test_a_client_s_template_takes_no_time_of_the_router() -> None:
    scheduler = FakeScheduler(writing("ok"))
    scheduler.files = make_files()
    router = await start_router(await scheduler.start())
    listens = await read_until(router, "gRPC at")
    await read_until(router, "serving tiny")
    async with grpc.aio.insecure_channel(listens.split()[-1]) as channel:
        client = inference_pb2_grpc.InferenceServiceStub(channel)
        used = psutil.Process(router.pid).cpu_times
        before = used().user
        for i in range(10):
            request = make_chat(tools=[WEATHER], chat_template=LARGE + str(i))
            assert [answer async for answer in client.Chat(request)]
        assert used().user - before < 1  # of CPU time; to parse them takes twice as much
    router.kill()
    await router.wait()
    await scheduler.stop()


async def test_no_process_of_a_template_outlives_a_router_that_is_killed() -> None:
    scheduler = FakeScheduler(writing("ok"))
    scheduler.files = make_files(chat_template=OF_ONE)
    router = await start_router(await scheduler.start())
    listens = await read_until(router, "gRPC at")
    await read_until(router, "serving tiny")
    async with grpc.aio.insecure_channel(listens.split()[-1]) as channel:
        client = inference_pb2_grpc.InferenceServiceStub(channel)
        idle = children(router.pid)
        calls = [client.Chat(make_chat(message("no"))) for _ in range(2)]
        reads = [asyncio.ensure_future(call.read()) for call in calls]
        await eventually(lambda: len(children(router.pid)) > len(idle))
        started = children(router.pid)
        router.kill()
        await asyncio.gather(*reads, return_exceptions=True)
    await asyncio.wait_for(router.wait(), EVENT_S)
    for one in started:
        wait_until_ended(one.pid)
    await scheduler.stop()

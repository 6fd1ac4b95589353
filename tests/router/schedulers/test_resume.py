"""Requests that lose their scheduler: sent again with what their clients have, or ended clearly."""

import asyncio
from typing import Any

import grpc
import pytest

from signalbox_contract.columns import unpack_int32
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2
from signalbox_router.schedulers.scheduler_pool import MAX_FRUITLESS_ATTEMPTS
from tests.grpc_errors import code_of
from tests.integration.test_stack import Answer
from tests.ports import free_port
from tests.router.fakes import finished, ids_of, step
from tests.router.stack import Stack, make_generate, make_stack
from tests.waiting import EVENT_S


async def read(stack: Stack, **fields: Any) -> Answer:
    answer = Answer()
    async for response in stack.client.Generate(make_generate(**fields)):
        answer.add(response)
    return answer


def delivered(add: scheduler_pb2.Request) -> list[tuple[list[int], int]]:
    return [
        (unpack_int32(sequence.token_ids).tolist(), sequence.finish_reason)
        for sequence in add.delivered
    ]


async def test_a_stream_goes_on_behind_what_its_client_has(stack: Stack) -> None:
    params = pb.SamplingParams(seed=7, temperature=1.0, max_tokens=20)
    call = asyncio.create_task(read(stack, sampling_params=params))
    first = await stack.added()
    stack.scheduler.send(step((first.handle, 0, ids_of(" Paris is"))))
    stack.scheduler.end_stream()
    again = await stack.added(2)
    assert delivered(again) == [(ids_of(" Paris is"), 0)]
    assert (again.attempt, again.nonce) == (1, first.nonce)
    assert again.age_ns > 0
    assert again.sampling_params == first.sampling_params
    assert again.max_tokens == first.max_tokens
    stack.scheduler.send(step((again.handle, 0, ids_of(" nice")), **finished(again.handle)))
    answer = await call
    assert answer.text[0] == " Paris is nice"
    assert answer.token_ids[0] == ids_of(" Paris is") + ids_of(" nice")
    assert answer.usage is not None
    assert answer.usage.completion_tokens == len(answer.token_ids[0])


async def test_ended_branches_stay_ended_and_the_others_go_on(stack: Stack) -> None:
    stack.scheduler.request_of_a_stop_ends = False
    params = pb.SamplingParams(n=3, stop=["nice"])
    call = asyncio.create_task(read(stack, sampling_params=params))
    first = await stack.added()
    runs = [(first.handle, index, ids_of(text)) for index, text in enumerate("abc")]
    length = scheduler_pb2.FinishedSequence(
        handle=first.handle, index=1, reason=scheduler_pb2.FINISH_REASON_LENGTH
    )
    stack.scheduler.send(step(*runs, sequences=[length]))
    stack.scheduler.send(step((first.handle, 2, ids_of(" nice is"))))
    await stack.scheduler.wait_until(lambda: bool(stack.scheduler.stopped))
    stack.scheduler.end_stream()
    again = await stack.added(2)
    (_, _, keep_tokens) = stack.scheduler.stopped[0]
    stopped = [*ids_of("c"), *ids_of(" nice is")][:keep_tokens]
    assert delivered(again) == [
        (ids_of("a"), 0),
        (ids_of("b"), scheduler_pb2.FINISH_REASON_LENGTH),
        (stopped, scheduler_pb2.FINISH_REASON_STOP_STRING),
    ]
    stack.scheduler.send(step((again.handle, 0, ids_of(" d")), **finished(again.handle)))
    answer = await call
    assert answer.text == {0: "a d", 1: "b", 2: "c "}


async def test_a_request_whose_sequences_have_ended_needs_no_scheduler(stack: Stack) -> None:
    call = asyncio.create_task(read(stack, sampling_params=pb.SamplingParams(stop=["nice"])))
    add = await stack.added()
    stack.scheduler.request_of_a_stop_ends = False
    stack.scheduler.send(step((add.handle, 0, ids_of(" Paris nice"))))
    await stack.scheduler.wait_until(lambda: bool(stack.scheduler.stopped))
    await stack.scheduler.stop()
    answer = await asyncio.wait_for(call, EVENT_S)
    assert answer.text[0] == " Paris "
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(add.prompt_token_ids)
    assert len(stack.scheduler.added) == 1


async def test_what_a_search_has_told_is_not_told_twice(stack: Stack) -> None:
    search = pb.SamplingParams(beam_search=pb.BeamSearch(width=2), max_tokens=20)
    call = asyncio.create_task(read(stack, sampling_params=search))
    first = await stack.added()
    stack.scheduler.send(step((first.handle, 0, ids_of(" Paris is"))))
    stack.scheduler.end_stream()
    again = await stack.added(2)
    assert not again.delivered
    for token_id in ids_of(" Paris is"):
        stack.scheduler.send(step((again.handle, 0, [token_id])))
    stack.scheduler.send(step((again.handle, 0, ids_of(" nice")), **finished(again.handle)))
    assert (await call).text[0] == " Paris is nice"


async def test_a_search_that_goes_another_way_ends(stack: Stack) -> None:
    search = pb.SamplingParams(beam_search=pb.BeamSearch(width=2), max_tokens=20)
    call = asyncio.create_task(read(stack, sampling_params=search))
    first = await stack.added()
    stack.scheduler.send(step((first.handle, 0, ids_of(" Paris is"))))
    stack.scheduler.end_stream()
    again = await stack.added(2)
    stack.scheduler.send(step((again.handle, 0, ids_of(" nice"))))
    assert await code_of(call) is grpc.StatusCode.UNAVAILABLE
    await stack.scheduler.wait_until(lambda: stack.scheduler.aborted == [again.handle])


async def test_a_request_that_waits_too_long_for_a_scheduler_ends() -> None:
    async with make_stack(resume_wait=0.2) as stack:
        call = asyncio.create_task(stack.generate())
        await stack.added()
        await stack.scheduler.stop()
        with pytest.raises(grpc.aio.AioRpcError, match="none took the request over within") as end:
            await call
        assert end.value.code() is grpc.StatusCode.UNAVAILABLE


async def test_a_client_that_leaves_while_its_request_waits_is_not_sent_again() -> None:
    async with make_stack(scheduler_port=free_port()) as stack:
        call = asyncio.create_task(stack.generate())
        await stack.added()
        await stack.scheduler.stop()
        await stack.wait_serving(False)
        call.cancel()
        await stack.check_nothing_is_left()
        await stack.scheduler.start()
        await stack.wait_serving()
        assert len(stack.scheduler.added) == 1


async def test_another_model_does_not_go_on_with_a_request() -> None:
    async with make_stack(scheduler_port=free_port()) as stack:
        call = asyncio.create_task(stack.generate())
        await stack.added()
        await stack.scheduler.stop()
        stack.scheduler.model_name = "other"
        await stack.scheduler.start()
        with pytest.raises(grpc.aio.AioRpcError, match="no longer served"):
            await call


async def test_a_request_that_may_be_the_cause_is_not_sent_for_ever(stack: Stack) -> None:
    call = asyncio.create_task(read(stack))
    for attempt in range(MAX_FRUITLESS_ATTEMPTS + 1):
        add = await stack.added(attempt + 1)
        if attempt == 0:
            stack.scheduler.send(step((add.handle, 0, ids_of("x"))))
        stack.scheduler.end_stream()
    assert await code_of(call) is grpc.StatusCode.UNAVAILABLE
    assert len(stack.scheduler.added) == MAX_FRUITLESS_ATTEMPTS + 1


async def test_prompt_logprobs_are_asked_for_once(stack: Stack) -> None:
    params = pb.SamplingParams(prompt_logprobs=0, max_tokens=5)
    call = asyncio.create_task(stack.generate(sampling_params=params))
    first = await stack.added()
    num_positions = len(first.prompt_token_ids) - 1
    outputs = step((first.handle, 0, ids_of("x")))
    run = outputs.prompt_logprobs.add(handle=first.handle, first_position=1)
    for _ in range(num_positions):
        run.logprobs.add(logprob=-1.0, rank=1)
    stack.scheduler.send(outputs)
    stack.scheduler.end_stream()
    again = await stack.added(2)
    assert again.num_delivered_prompt_logprobs == num_positions
    stack.scheduler.send(step((again.handle, 0, ids_of("y")), **finished(again.handle)))
    answers = await call
    assert sum(len(answer.prompt_logprobs) for answer in answers) == num_positions

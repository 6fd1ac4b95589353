"""What the router tells of its model, its tokens and its load."""

import asyncio

import grpc
import pytest

from signalbox_contract.errors import Unavailable
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.scheduler.v1 import stats_pb2
from signalbox_router.schedulers.load_client import MAX_AGE_S, LoadClient
from tests.grpc_errors import code_of
from tests.router.fakes import (
    BOS,
    MAX_MODEL_LEN,
    MODEL_NAME,
    FakeScheduler,
)
from tests.router.stack import Stack, make_generate, make_stack

StatusCode = grpc.StatusCode


async def test_tokenize_and_detokenize_refuse_what_generate_refuses() -> None:
    async with make_stack(max_prompt_bytes=100) as stack:
        tokenize, detokenize = stack.client.Tokenize, stack.client.Detokenize
        too_long = pb.TokenizeRequest(text="a" * 101)
        assert await code_of(tokenize(too_long)) is StatusCode.INVALID_ARGUMENT
        unknown = pb.TokenizeRequest(text="a", model="other")
        assert await code_of(tokenize(unknown)) is StatusCode.NOT_FOUND
        past = pb.DetokenizeRequest(token_ids=[10**6])
        assert await code_of(detokenize(past)) is StatusCode.INVALID_ARGUMENT


async def test_get_model_says_what_is_served(stack: Stack) -> None:
    model = await stack.client.GetModel(pb.GetModelRequest())
    assert (model.name, model.max_model_len) == (MODEL_NAME, MAX_MODEL_LEN)
    assert model.has_chat_template


async def test_a_model_that_the_scheduler_says_has_changed_is_asked_for_at_once() -> None:
    async with make_stack(model_poll_s=1000.0) as stack:
        for has_worker in (False, True):
            stack.scheduler.has_worker = has_worker
            stack.scheduler.say_model_changed()
            await stack.wait_serving(has_worker)
        assert stack.scheduler.num_streams == 1  # else it asked because the stream was lost


async def test_a_change_that_the_scheduler_does_not_tell_is_noticed(stack: Stack) -> None:
    stack.scheduler.has_worker = False
    await stack.wait_serving(False)
    stack.scheduler.has_worker = True
    await stack.wait_serving()


async def test_tokens_come_with_their_texts_if_asked_for(stack: Stack) -> None:
    asked = pb.TokenizeRequest(text="Paris is nice", return_texts=True)
    tokens = await stack.client.Tokenize(asked)
    assert len(tokens.texts) == len(tokens.token_ids)
    assert "".join(tokens.texts) == BOS + "Paris is nice"
    assert not (await stack.client.Tokenize(pb.TokenizeRequest(text="a"))).texts
    asked.text = "a b " * MAX_MODEL_LEN
    assert await code_of(stack.client.Tokenize(asked)) is StatusCode.INVALID_ARGUMENT


async def test_the_load_is_the_routers_and_the_sum_of_the_workers(stack: Stack) -> None:
    workers = [
        stats_pb2.WorkerStats(
            num_requests_running=3,
            num_requests_swapped=1,
            num_gpu_blocks=100,
            num_free_gpu_blocks=60,
        )
    ] * 2
    stack.scheduler.stats = stats_pb2.GetStatsResponse(num_requests_waiting=5, workers=workers)
    call = stack.client.Generate(make_generate())
    await stack.added()
    load = await stack.client.GetLoad(pb.GetLoadRequest())
    call.cancel()
    assert load == pb.GetLoadResponse(
        num_live_requests=1,
        max_live_requests=4096,
        num_waiting_requests=5,
        num_running_requests=6,
        num_swapped_requests=2,
        num_workers=2,
        num_kv_blocks=200,
        num_used_kv_blocks=80,
    )


async def test_who_asks_for_the_load_at_once_costs_the_scheduler_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("signalbox_router.schedulers.load_client.MAX_AGE_S", 60)
    async with make_stack() as stack:
        asked = [stack.client.GetLoad(pb.GetLoadRequest()) for _ in range(50)]
        await asyncio.gather(*asked)
        assert stack.scheduler.num_stats_calls == 1


async def test_the_load_is_that_of_the_schedulers_that_answer() -> None:
    schedulers = [FakeScheduler(), FakeScheduler()]
    for scheduler in schedulers:
        await scheduler.start()
        scheduler.stats = stats_pb2.GetStatsResponse(num_requests_waiting=3)
    client = LoadClient([f"127.0.0.1:{scheduler.port}" for scheduler in schedulers])
    try:
        assert (await client.fetch()).num_waiting == 6
        await schedulers[0].stop()
        await asyncio.sleep(2 * MAX_AGE_S)
        assert (await client.fetch()).num_waiting == 3
        await schedulers[1].stop()
        await asyncio.sleep(2 * MAX_AGE_S)
        with pytest.raises(Unavailable):
            await client.fetch()
    finally:
        await client.close()


async def test_the_load_is_unavailable_while_nobody_serves(stack: Stack) -> None:
    stack.scheduler.has_worker = False
    await stack.wait_serving(False)
    ask = stack.client.GetLoad(pb.GetLoadRequest())
    assert await code_of(ask) is StatusCode.UNAVAILABLE
    stack.scheduler.has_worker = True
    await stack.wait_serving()

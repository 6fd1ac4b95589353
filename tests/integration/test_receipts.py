"""Receipts of services, computed again in this process."""

import contextlib
import json
from typing import Any

import pytest

from signalbox.llm.in_process.recomputation import recompute
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_router.receipts.receipt_codec import decode
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    running_router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.signalbox.llm.make import make_llm

PARAMS = {"temperature": 0.8, "seed": 11, "max_tokens": 20, "n": 2}


async def ask(stub: Any, **params: Any) -> list[pb.GenerateResponse]:
    request = pb.GenerateRequest(
        text="To be or", sampling_params=pb.SamplingParams(**PARAMS | params), receipt=True
    )
    return [answer async for answer in stub.Generate(request)]


@pytest.mark.parametrize("params", [{}, {"stop": ["e", "a"]}, {"temperature": 0, "n": 1}], ids=str)
async def test_a_receipt_of_the_services_is_computed_again(params: dict[str, Any]) -> None:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(running_scheduler(SchedulerConfig(port=0)))
        await stack.enter_async_context(running_worker(scheduler.address, simulated()))
        router = await stack.enter_async_context(running_router(scheduler.address))
        channel = await stack.enter_async_context(open_channel(router.server.address))
        answers = await ask(pb_grpc.InferenceServiceStub(channel), **params)
    receipt = decode(json.loads(answers[-1].receipt))
    streamed: dict[int, list[int]] = {}
    for answer in answers:
        for delta in answer.outputs:
            streamed.setdefault(delta.index, []).extend(delta.token_ids)
    assert [one.token_ids for one in receipt.outputs] == [streamed[i] for i in sorted(streamed)]
    with make_llm() as llm:
        assert recompute(llm.llm_engine._core, receipt) is None


async def test_a_request_of_two_arithmetics_has_no_receipt() -> None:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(running_scheduler(SchedulerConfig(port=0)))
        slow = {"step_ns": 2_000_000}
        first = await stack.enter_async_context(
            running_worker(scheduler.address, simulated(arithmetic="1" * 64, **slow))
        )
        router = await stack.enter_async_context(running_router(scheduler.address))
        channel = await stack.enter_async_context(open_channel(router.server.address))
        stub = pb_grpc.InferenceServiceStub(channel)
        request = pb.GenerateRequest(
            text="To be or",
            sampling_params=pb.SamplingParams(max_tokens=400, ignore_eos=True),
            receipt=True,
        )
        call = aiter(stub.Generate(request))
        await anext(call)
        await stack.enter_async_context(
            running_worker(scheduler.address, simulated(arithmetic="2" * 64))
        )
        await until_workers(scheduler, 2)
        await first.kill()
        answers = [answer async for answer in call]
    assert "computes other bits" in json.loads(answers[-1].receipt)["unavailable"]

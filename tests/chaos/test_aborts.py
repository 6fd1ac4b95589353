"""Clients that leave in whatever state their request is in; afterwards every block can be had."""

import asyncio
import os
import random

import grpc
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from tests.integration.stack import assert_idle
from tests.integration.test_stack import make_request, make_stack

NUM_ABORTS = int(os.environ.get("CHAOS_ABORTS", "300"))
NUM_CLIENTS = 32
TIME_LIMIT_S = 1800 + NUM_ABORTS // 4


def random_request(rng: random.Random) -> pb.GenerateRequest:
    """More than the pools hold at once, so that requests wait, are swapped and are recomputed."""
    params: dict[str, object] = {"max_tokens": rng.randrange(1, 100)}
    prompt = [rng.randrange(4)] * rng.randrange(1, 60)  # prefixes in common
    kind = rng.randrange(4)
    if kind == 1:
        params |= {"temperature": 1.0, "seed": rng.randrange(9), "n": rng.randrange(1, 5)}
    if kind == 2:
        params |= {"beam_search": pb.BeamSearch(width=2)}
    if kind == 3:
        params |= {"temperature": 1.0, "n": 2, "best_of": 3}
    return make_request(prompt, **params)


async def ask_and_leave(stub: pb_grpc.InferenceServiceStub, rng: random.Random) -> str:
    """Leaves after some time, after some messages, or at its deadline; returns how it ended."""
    way, messages = rng.randrange(3), rng.randrange(20)
    timeout = rng.random() * 0.3 if way == 0 else None
    call = stub.Generate(random_request(rng), timeout=timeout)
    try:
        if way == 1:
            await asyncio.sleep(rng.random() * 0.1)
            return "left"
        async for _ in call:
            messages -= 1
            if messages < 0 and way == 2:
                return "left"
    except grpc.aio.AioRpcError as error:
        return error.code().name
    finally:
        call.cancel()
    return "whole"


@pytest.mark.timeout(TIME_LIMIT_S)
async def test_random_aborts_give_every_block_back_on_both_pools() -> None:
    endings: dict[str, int] = {}
    num_left = NUM_ABORTS

    async def client(stub: pb_grpc.InferenceServiceStub, rng: random.Random) -> None:
        nonlocal num_left
        while num_left > 0:
            ending = await ask_and_leave(stub, rng)
            endings[ending] = endings.get(ending, 0) + 1
            num_left -= ending != "whole"

    async with make_stack(
        num_gpu_blocks=48, num_cpu_blocks=24, max_num_batched_tokens=64, max_num_seqs=24
    ) as stack:
        await asyncio.gather(*(client(stack.stub, random.Random(i)) for i in range(NUM_CLIENTS)))
        scheduler = stack.scheduler.cluster.step_loops[0].scheduler
        assert scheduler.preemption.num_preemptions > NUM_ABORTS // 100
        await assert_idle(stack.scheduler)  # free + cached == total, on both pools
    assert set(endings) <= {"left", "whole", "DEADLINE_EXCEEDED"}
    assert endings["left"] + endings["DEADLINE_EXCEEDED"] >= NUM_ABORTS

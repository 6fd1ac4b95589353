"""The scheduler with simulated workers that pool: right vectors whatever happens to the workers.

A vector is a hash of all that its worker reads through the block tables, so a wrong block, and a
token of a mean that counts twice or not at all, shows in it.
"""

import asyncio
import random
from pathlib import Path

import numpy as np
import pytest

from signalbox_contract.pooling import PoolingModel, PoolingParams, encode
from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from tests.integration.stack import (
    Router,
    assert_idle,
    count,
    router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.simulated_model import expected_tokens, expected_vector
from tests.waiting import eventually

NUM_REQUESTS = 40


def make_prompt(seed: int) -> list[int]:
    """Returns one of 25 prompts, so that those of some requests are equal."""
    rng = random.Random(seed % 25)
    return [rng.randrange(300) for _ in range(rng.randrange(1, 100))]


def make_params(seed: int, model: PoolingModel) -> PoolingParams:
    num_tokens = len(make_prompt(seed))
    return PoolingParams(
        num_first_segment_tokens=num_tokens // 2 if seed % 3 and model.reads_all_tokens else 0,
        num_skipped_tokens=seed % 5 and num_tokens // 3,
        is_per_token=model.task == "token_embed" or (seed % 2 == 1 and model.num_token_outputs > 0),
    )


async def add(client: Router, handle: int, model: PoolingModel, **fields: object) -> None:
    params = {"max_tokens": 1, "pooling": encode(make_params(handle, model))}
    await client.add(handle, make_prompt(handle), **params | fields)


async def run_load(client: Router, model: PoolingModel) -> None:
    for handle in range(NUM_REQUESTS):
        await add(client, handle, model)
    await client.ended(*range(NUM_REQUESTS))


def assert_pooled(client: Router, handle: int, model: PoolingModel) -> None:
    got = client.got[handle]
    got.assert_served()
    assert got.vector is not None
    expected = expected_vector(make_prompt(handle), model=model, params=make_params(handle, model))
    assert np.array_equal(got.vector, expected), handle
    assert (got.tokens, got.reasons) == ({}, {0: pb.FINISH_REASON_STOP})
    usage = got.end.usage
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(make_prompt(handle)), 0)


@pytest.mark.parametrize("num_gpu_blocks", [1000, 20])
@pytest.mark.parametrize("name", SIMULATED_POOLING)
async def test_vectors_are_right_in_chunks_and_in_few_blocks(
    name: str, num_gpu_blocks: int
) -> None:
    model = SIMULATED_POOLING[name]
    make = simulated(
        pooling=model, block_size=8, num_gpu_blocks=num_gpu_blocks, max_num_batched_tokens=48
    )
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await run_load(client, model)
        for handle in range(NUM_REQUESTS):
            assert_pooled(client, handle, model)
        (worker,) = (await client.stub.GetStats(stats_pb2.GetStatsRequest())).workers
        num_tokens = sum(len(make_prompt(i)) for i in range(NUM_REQUESTS))
        assert count(worker.samples, "prompt_tokens") == num_tokens
        assert count(worker.samples, "num_preemptions") == 0
        if num_gpu_blocks == 1000:
            assert (count(worker.samples, "prefix_cache_hits") > 0) is (name == "last")
        await assert_idle(scheduler)


@pytest.mark.parametrize("name", SIMULATED_POOLING)
async def test_prompts_of_a_killed_worker_are_pooled_elsewhere(name: str) -> None:
    model = SIMULATED_POOLING[name]
    make = simulated(pooling=model, step_ns=5_000_000, max_num_batched_tokens=32)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make) as first,
    ):
        await until_workers(scheduler, 1)
        async with running_worker(scheduler.address, make), router(scheduler.address) as client:
            await until_workers(scheduler, 2)
            load = asyncio.create_task(run_load(client, model))
            await eventually(lambda: any(got.end is not None for got in client.got.values()))
            await first.kill()
            await load
            for handle in range(NUM_REQUESTS):
                assert_pooled(client, handle, model)
            await assert_idle(scheduler)


@pytest.mark.parametrize("name", ["mean", "bidirectional"])
async def test_aborted_prompts_give_their_blocks_back(name: str) -> None:
    model = SIMULATED_POOLING[name]
    make = simulated(pooling=model, step_ns=2_000_000, max_num_batched_tokens=16)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        for handle in range(NUM_REQUESTS):
            await add(client, handle, model)
        for handle in range(0, NUM_REQUESTS, 2):
            await client.abort(handle)
        kept = range(1, NUM_REQUESTS, 2)
        await client.ended(*kept)
        for handle in kept:
            assert_pooled(client, handle, model)
        await assert_idle(scheduler)


@pytest.mark.parametrize("name", ["last", "bidirectional"])
async def test_a_recording_is_replayed_step_by_step(name: str, tmp_path: Path) -> None:
    path = str(tmp_path / "decisions")
    model = SIMULATED_POOLING[name]
    make = simulated(pooling=model, block_size=8, num_gpu_blocks=40, max_num_batched_tokens=48)
    async with (
        running_scheduler(SchedulerConfig(port=0, recording_path=path)) as scheduler,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await run_load(client, model)
        await assert_idle(scheduler)
        num_steps = scheduler.cluster.step_loops[0].scheduler.num_steps
    replay = Replay(path, checks=True)
    assert replay.run() is None
    assert replay.num_steps == num_steps > 10


async def test_a_request_of_the_other_kind_is_refused() -> None:
    model = SIMULATED_POOLING["last"]
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(pooling=model)),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await client.add(1, [1, 2, 3])
        await add(client, 2, model, max_tokens=2)
        await add(client, 3, model)
        refused = await client.ended(1, 2)
        for got, field in zip(refused, ("pooling is unset", "max_tokens is 2"), strict=True):
            assert got.end is not None
            assert got.end.code == 3
            assert got.end.message.startswith(field)
        await client.ended(3)
        assert_pooled(client, 3, model)
        await assert_idle(scheduler)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated()),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await add(client, 1, model)
        (got,) = await client.ended(1)
        assert got.end is not None
        assert (got.end.code, got.vector) == (3, None)
        await client.add(2, [1, 2, 3])
        (generated,) = await client.ended(2)
        assert generated.tokens[0] == expected_tokens([1, 2, 3], num_tokens=16)
        await assert_idle(scheduler)


async def test_a_pooled_request_is_explained_without_a_first_token() -> None:
    model = SIMULATED_POOLING["mean"]
    make = simulated(pooling=model, max_num_batched_tokens=16)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await client.add(1, [1] * 40, max_tokens=1, pooling=encode(PoolingParams()))
        await client.ended(1)
        answer = await client.stub.Explain(explain_pb2.ExplainRequest(request_id="r1"))
        assert [event.kind for event in answer.events] == [
            explain_pb2.EVENT_KIND_QUEUED,
            explain_pb2.EVENT_KIND_SCHEDULED,
            *[explain_pb2.EVENT_KIND_PREFILL] * 3,
            explain_pb2.EVENT_KIND_POOLED,
            explain_pb2.EVENT_KIND_ENDED,
        ]
        assert answer.decode_ns == 0
        await assert_idle(scheduler)

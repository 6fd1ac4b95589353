"""The scheduler with simulated workers over real gRPC: right tokens whatever happens to them.

The simulated worker reads its tokens back through the block tables, so a wrong block map, a stale
block or a lost copy shows in the output.
"""

import asyncio
import dataclasses
import random

import pytest

from signalbox_contract.model import WorkerCapacity
from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_rpc.metrics.registry import make_registry
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_scheduler.main import SCHEDULER_SERVICE
from signalbox_scheduler.service.reports import metrics
from signalbox_worker.runner.simulated.simulated_config import SIMULATED
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.registration_client import RegistrationRefused
from tests.integration.stack import (
    Got,
    Router,
    assert_idle,
    router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually


def make_config(**fields: object) -> SchedulerConfig:
    return SchedulerConfig(port=0, **fields)  # type: ignore[arg-type]


def make_prompt(seed: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(300) for _ in range(rng.randrange(1, 60))]


def sampling(seed: int) -> common_pb2.SamplingParams:
    return common_pb2.SamplingParams(temperature=1.0, top_p=1.0, seed=seed)


async def run_load(client: Router, *, num_requests: int, max_tokens: int = 24) -> None:
    """Sends a mixture of greedy and sampled requests, of one and of three branches."""
    for i in range(num_requests):
        await client.add(
            i,
            make_prompt(i),
            max_tokens=max_tokens,
            num_sequences=3 if i % 4 == 3 else 1,
            sampling_params=sampling(i) if i % 2 else None,
        )
    await client.ended(*range(num_requests))


def assert_load(client: Router, *, num_requests: int, max_tokens: int = 24) -> None:
    for i in range(num_requests):
        got = client.got[i]
        got.assert_served()
        for branch in range(3 if i % 4 == 3 else 1):
            assert got.reasons[branch] == pb.FINISH_REASON_LENGTH
            assert got.tokens[branch] == expected_tokens(
                make_prompt(i),
                num_tokens=max_tokens,
                temperature=float(i % 2),
                seed=i if i % 2 else 0,
                branch=branch,
            )


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize(
    ("num_gpu_blocks", "num_cpu_blocks", "max_num_batched_tokens", "mode"),
    [
        (1000, 0, 2048, PreemptionMode.SWAP),
        (1000, 0, 64, PreemptionMode.SWAP),
        (28, 0, 64, PreemptionMode.RECOMPUTE),
        (28, 100, 64, PreemptionMode.SWAP),
        (28, 10, 64, PreemptionMode.SWAP),
    ],
)
async def test_tokens_are_right_under_load(
    num_workers: int,
    num_gpu_blocks: int,
    num_cpu_blocks: int,
    max_num_batched_tokens: int,
    mode: PreemptionMode,
) -> None:
    make = simulated(
        block_size=8,
        num_gpu_blocks=num_gpu_blocks,
        num_cpu_blocks=num_cpu_blocks,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    async with (
        running_scheduler(make_config(preemption_mode=mode)) as scheduler,
        running_worker(scheduler.address, make),
        running_worker(scheduler.address, make) as second,
    ):
        await until_workers(scheduler, 2)
        if num_workers == 1:
            await second.kill()
            await until_workers(scheduler, 1)
        async with router(scheduler.address) as client:
            await run_load(client, num_requests=40)
            assert_load(client, num_requests=40)
            step_loops = scheduler.cluster.step_loops
            assert all(one.scheduler.num_steps for one in step_loops)
            pressed = num_gpu_blocks < 100
            assert any(one.scheduler.preemption.num_preemptions for one in step_loops) is pressed
        await assert_idle(scheduler)


async def test_requests_of_a_killed_worker_go_on_elsewhere() -> None:
    make = simulated(step_ns=2_000_000)
    async with (
        running_scheduler(make_config()) as scheduler,
        running_worker(scheduler.address, make) as first,
    ):
        await until_workers(scheduler, 1)
        async with running_worker(scheduler.address, make), router(scheduler.address) as client:
            await until_workers(scheduler, 2)
            load = asyncio.create_task(run_load(client, num_requests=24, max_tokens=60))
            await eventually(lambda: any(len(got.tokens) > 0 for got in client.got.values()))
            await first.kill()
            await load
            assert_load(client, num_requests=24, max_tokens=60)
            assert len(scheduler.cluster.step_loops) == 1
            await assert_idle(scheduler)


async def test_requests_that_go_on_with_other_numerics_are_counted() -> None:
    other = dataclasses.replace(SIMULATED, kv_cache_dtype="uint32")
    async with running_scheduler(make_config()) as scheduler, router(scheduler.address) as client:
        make = simulated(step_ns=2_000_000)
        async with running_worker(scheduler.address, make) as first:
            await until_workers(scheduler, 1)
            load = asyncio.create_task(run_load(client, num_requests=12, max_tokens=60))
            await eventually(lambda: any(len(got.tokens) > 0 for got in client.got.values()))
            await first.kill()
        await until_workers(scheduler, 0)
        async with running_worker(scheduler.address, simulated(numerics=other)):
            await load
            assert_load(client, num_requests=12, max_tokens=60)
            (loop,) = scheduler.cluster.step_loops
            num_requests = loop.scheduler.planner.numerics_changes.num_requests
            assert num_requests > 0
            registry = make_registry(lambda: metrics.samples(scheduler.cluster))
            shown = registry.get_sample_value(
                "signalbox_num_numerics_changes_total",
                {"model_name": "simulated", "worker": loop.worker_name},
            )
            assert shown == num_requests


async def test_requests_of_the_only_worker_go_on_at_the_next() -> None:
    make = simulated(step_ns=2_000_000)
    async with running_scheduler(make_config()) as scheduler, router(scheduler.address) as client:
        async with running_worker(scheduler.address, make) as first:
            await until_workers(scheduler, 1)
            load = asyncio.create_task(run_load(client, num_requests=12, max_tokens=60))
            await eventually(lambda: any(len(got.tokens) > 0 for got in client.got.values()))
            await first.kill()
        await until_workers(scheduler, 0)
        await client.add(99, [1, 2, 3])
        (refused,) = await client.ended(99)
        assert refused.end is not None
        assert refused.end.code == 14
        async with running_worker(scheduler.address, make):
            await load
            assert_load(client, num_requests=12, max_tokens=60)
            await assert_idle(scheduler)


async def test_a_draining_worker_hands_over_what_it_has_no_time_for() -> None:
    make = simulated(step_ns=5_000_000)
    async with (
        running_scheduler(make_config()) as scheduler,
        running_worker(scheduler.address, make) as first,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        load = asyncio.create_task(run_load(client, num_requests=12, max_tokens=60))
        await eventually(lambda: any(len(got.tokens) > 0 for got in client.got.values()))
        async with running_worker(scheduler.address, make):
            await until_workers(scheduler, 2)
            await first.registration.drain(timeout_s=0.05)
            await until_workers(scheduler, 1)  # while the worker is there still
            await first.kill()
            await load
            assert_load(client, num_requests=12, max_tokens=60)
            await assert_idle(scheduler)


async def test_abort_and_a_broken_stream_give_blocks_back() -> None:
    async with (
        running_scheduler(make_config()) as scheduler,
        running_worker(scheduler.address, simulated(step_ns=5_000_000)),
    ):
        await until_workers(scheduler, 1)
        async with router(scheduler.address) as client:
            for i in range(8):
                await client.add(i, make_prompt(i), max_tokens=2000)
            await eventually(lambda: len(scheduler.cluster.step_loops[0].scheduler.running) == 8)
            for i in range(4):
                await client.abort(i)
            await eventually(lambda: len(scheduler.cluster.requests) == 4)
        await assert_idle(scheduler)


async def test_a_worker_of_another_model_is_refused() -> None:
    async with (
        running_scheduler(make_config()) as scheduler,
        running_worker(scheduler.address, simulated()),
    ):
        await until_workers(scheduler, 1)
        async with running_worker(scheduler.address, simulated(vocab_size=400)) as other:
            with pytest.raises(Exception, match="vocab_size is 400"):
                await other.task
        assert len(scheduler.cluster.step_loops) == 1


class EmptyRunner(SimulatedRunner):
    """Has no room for anything."""

    def profile(self) -> WorkerCapacity:
        return dataclasses.replace(super().profile(), num_gpu_blocks=0)


async def test_a_worker_that_can_hold_nothing_is_refused_for_good() -> None:
    async with (
        running_scheduler(make_config()) as scheduler,
        running_worker(scheduler.address, EmptyRunner) as worker,
    ):
        async with asyncio.timeout(EVENT_S):
            with pytest.raises(RegistrationRefused, match="0 blocks of 16 tokens"):
                await worker.task
        assert not scheduler.cluster.step_loops


async def test_routers_are_told_when_workers_join_and_drain() -> None:
    async with running_scheduler(make_config()) as scheduler, router(scheduler.address) as client:
        await client.call.initial_metadata()
        async with running_worker(scheduler.address, simulated()) as worker:
            await eventually(lambda: client.num_model_changes == 1)
            await client.stub.GetModel(pb.GetModelRequest())
            assert scheduler.server.is_serving(SCHEDULER_SERVICE)
            await worker.registration.drain(timeout_s=60)
            await eventually(lambda: client.num_model_changes > 1)
            assert not scheduler.server.is_serving(SCHEDULER_SERVICE)


@pytest.mark.parametrize(
    "params",
    [
        {"top_p": 0.0},
        {"top_p": float("nan")},
        {"top_p": 1.0, "temperature": float("inf")},
        {"top_p": 1.0, "min_p": 5.0},
        {"top_p": 1.0, "num_logprobs": 10**9},
        {"top_p": 1.0, "stop_token_ids": [10**9]},
    ],
)
async def test_what_no_worker_would_compute_is_refused_and_harms_nobody(
    params: dict[str, object],
) -> None:
    async with (
        running_scheduler(make_config()) as scheduler,
        running_worker(scheduler.address, simulated(step_ns=2_000_000)),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        step_loops = list(scheduler.cluster.step_loops)
        await client.add(1, [1, 2, 3], max_tokens=40)
        client.got[2] = Got()
        bad = pb.Request(
            handle=2, request_id="bad", prompt_token_ids=[1], max_tokens=3, num_sequences=1
        )
        bad.sampling_params.MergeFrom(common_pb2.SamplingParams(**params))  # type: ignore[arg-type]
        await client.call.write(pb.ConnectRequest(add_request=bad))
        good, refused = await client.ended(1, 2)
        assert refused.end is not None
        assert refused.end.code == 3
        assert good.tokens[0] == expected_tokens([1, 2, 3], num_tokens=40)
        assert scheduler.cluster.step_loops == step_loops


async def test_a_draining_worker_finishes_what_was_preempted_and_takes_nothing_new() -> None:
    config = make_config(preemption_mode=PreemptionMode.RECOMPUTE, watermark=0.0)
    runner = simulated(num_gpu_blocks=12, num_cpu_blocks=0, step_ns=2_000_000)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, runner) as worker,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        for i in range(4):
            await client.add(i, make_prompt(7), max_tokens=80)
        await eventually(lambda: len(client.got[3].tokens.get(0, [])) > 2)
        draining = asyncio.create_task(worker.registration.drain(timeout_s=60))
        await eventually(lambda: any(one.is_draining for one in scheduler.cluster.step_loops))
        await client.add(9, make_prompt(7), max_tokens=80)
        (refused,) = await client.ended(9)
        assert refused.end is not None
        assert refused.end.code == 14
        assert refused.end.retry_after_ns > 0
        for got in await client.ended(*range(4)):
            got.assert_served()
            assert got.tokens[0] == expected_tokens(make_prompt(7), num_tokens=80)
        async with asyncio.timeout(EVENT_S):
            await draining
        assert scheduler.cluster.step_loops == [] or scheduler.cluster.step_loops[0].is_drained

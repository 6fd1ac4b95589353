"""Workers for prompts and workers that decode, over real gRPC: right tokens, no block kept."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from signalbox_contract.worker_role import WorkerRole
from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_protos.scheduler.v1 import scheduler_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.service.registration_client import RegistrationRefused
from tests.integration.stack import (
    Router,
    RunningScheduler,
    RunningWorker,
    assert_idle,
    assert_replays,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.scheduler_svc.make import transfers
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

CONFIG = {
    "block_size": 8,
    "num_gpu_blocks": 400,
    "num_cpu_blocks": 200,
    "max_num_batched_tokens": 64,
    "step_ns": 1_000_000,
    "token_ns": 20_000,
}
NUM_STREAMS, NUM_TOKENS = 12, 60


pytestmark = pytest.mark.usefixtures("patient_moves")


class Pool:
    """A worker for prompts and one that decodes."""

    def __init__(
        self,
        scheduler: RunningScheduler,
        client: Router,
        prefill: RunningWorker,
        decode: RunningWorker,
    ) -> None:
        self.scheduler, self.client = scheduler, client
        self.prefill, self.decode = prefill, decode

    async def ask(self) -> None:
        for handle in range(NUM_STREAMS):
            await self.client.add(handle, prompt_of(handle), max_tokens=NUM_TOKENS)

    async def assert_right(self) -> None:
        for handle, got in enumerate(await self.client.ended(*range(NUM_STREAMS))):
            got.assert_served()
            assert got.tokens[0] == expected_tokens(prompt_of(handle), num_tokens=NUM_TOKENS)

    async def roles(self) -> list[str]:
        stats = await self.client.stub.GetStats(stats_pb2.GetStatsRequest())
        return [worker.role for worker in stats.workers]


def prompt_of(handle: int) -> list[int]:
    return [100 + handle] * (20 + 9 * handle)


@contextlib.asynccontextmanager
async def pool(recording: str | None = None) -> AsyncIterator[Pool]:
    runner = simulated(**CONFIG)
    async with (
        running_scheduler(SchedulerConfig(port=0, recording_path=recording)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, runner, role=WorkerRole.PREFILL) as prefill,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        async with running_worker(
            scheduler.address, simulated(**CONFIG), role=WorkerRole.DECODE
        ) as decode:
            await eventually(lambda: len(loops) == 2)
            yield Pool(scheduler, client, prefill, decode)
            await assert_idle(scheduler)


async def test_prompts_are_computed_by_one_worker_and_go_on_at_the_other(tmp_path: Path) -> None:
    recording = tmp_path / "decisions"
    async with pool(str(recording)) as running:
        assert await running.roles() == ["prefill", "decode"]
        await running.ask()
        await running.assert_right()
        prefill, decode = (loop.scheduler for loop in running.scheduler.cluster.step_loops)
        assert transfers(decode).migrations.num_in > 0
        assert decode.output_processor.num_prompt_tokens == 0
        assert prefill.output_processor.num_prompt_tokens == sum(
            len(prompt_of(handle)) for handle in range(NUM_STREAMS)
        )
        roles = {prefill.worker_name: "prefill", decode.worker_name: "decode"}
        for handle in range(NUM_STREAMS):
            request = explain_pb2.ExplainRequest(request_id=f"r{handle}")
            known = await running.client.stub.Explain(request)
            assert known.role == roles[known.worker]
    assert_replays(recording)


@pytest.mark.parametrize("loses_prefill", [True, False])
@pytest.mark.parametrize("seed", range(2))
async def test_the_worker_that_is_left_does_both(loses_prefill: bool, seed: int) -> None:
    async with pool() as running:
        await running.ask()
        await asyncio.sleep(random.Random(seed).random() / 5)  # any state is as good
        await (running.prefill if loses_prefill else running.decode).kill()
        await eventually(lambda: len(running.scheduler.cluster.step_loops) == 1)
        assert await running.roles() == ["both"]
        await running.assert_right()


async def test_a_storm_of_aborts_leaves_no_block_pinned() -> None:
    async with pool() as running:
        await running.ask()
        for handle in range(NUM_STREAMS):
            await running.client.abort(handle)
            await asyncio.sleep(0)
        await eventually(lambda: not len(running.scheduler.cluster.requests))


async def test_a_worker_of_other_blocks_is_refused_by_name() -> None:
    async with pool() as running:
        other = simulated(**CONFIG | {"block_size": 16})
        async with running_worker(running.scheduler.address, other) as worker:
            with pytest.raises(RegistrationRefused, match="not those of the worker at"):
                await worker.task


async def test_a_role_that_there_is_not_is_refused() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        open_channel(scheduler.address) as channel,
    ):
        call = pb_grpc.WorkerRegistryServiceStub(channel).Register()
        join = pb.Join(epoch=1, address="127.0.0.1:1", role="cook")
        await call.write(pb.RegisterRequest(join=join))
        with pytest.raises(grpc.aio.AioRpcError, match=r"role.*both, prefill, decode") as error:
            await call.read()
        assert error.value.code() is grpc.StatusCode.INVALID_ARGUMENT

"""A request that makes every step fail that holds it ends alone, through all services."""

import asyncio

import grpc
import pytest

from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.integration.stack import running_router, running_scheduler, running_worker
from tests.integration.test_stack import Answer, ask, make_request
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

POISON = 201
POISON_AT = 30
"""Its position: in the second chunk, when the first has been accepted and can be found."""
NUM_TOKENS = 40


class FragileRunner(SimulatedRunner):
    """Raises whenever it computes POISON, having written what it could."""

    def execute(self, batch: Batch) -> BatchOutput:
        samples = super().execute(batch)
        if (batch.positions[batch.token_ids == POISON] == POISON_AT).any():
            raise RuntimeError("illegal instruction")
        return samples


def make_runner() -> Runner:
    config = SimulatedConfig(
        num_gpu_blocks=64, num_cpu_blocks=32, max_num_batched_tokens=24, step_ns=1_000_000
    )
    return FragileRunner(config)


def prompt_of(number: int) -> list[int]:
    return [number + 1] * (20 + 3 * number)


async def ask_poisoned(stub: pb_grpc.InferenceServiceStub, number: int, n: int) -> grpc.StatusCode:
    prompt = [100 + number] * POISON_AT + [POISON] + [3] * 20
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await ask(stub, make_request(prompt, max_tokens=NUM_TOKENS, temperature=1, seed=1, n=n))
    assert "its log says why" in raised.value.details()
    return raised.value.code()


async def test_poisoned_requests_end_alone_and_nothing_of_them_is_kept() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make_runner),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        stub = pb_grpc.InferenceServiceStub(channel)
        pool = scheduler.cluster.step_loops[0].scheduler.blocks.gpu
        poisoned = [await ask_poisoned(stub, n, 1) for n in range(2)]
        assert pool.num_cached == 0
        healthy = [ask(stub, make_request(prompt_of(n), max_tokens=NUM_TOKENS)) for n in range(8)]
        results = await asyncio.gather(
            *healthy, *(ask_poisoned(stub, n, 1 + n % 2) for n in range(4))
        )
        for number, answer in enumerate(results[:8]):
            assert isinstance(answer, Answer)
            assert answer.token_ids[0] == expected_tokens(prompt_of(number), num_tokens=NUM_TOKENS)
        assert {*poisoned, *results[8:]} == {grpc.StatusCode.INTERNAL}
        await eventually(lambda: not scheduler.cluster.step_loops[0].scheduler.has_unfinished)
        scheduler.cluster.check()
        assert pool.num_free == pool.num_blocks  # what is cached can be had


async def test_a_request_that_rules_out_every_token_is_told_so_and_counts_as_no_fault() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make_runner),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        stub = pb_grpc.InferenceServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            stuck = make_request(prompt_of(1), max_tokens=4, min_tokens=3)
            stuck.sampling_params.allowed_token_ids.append(7)
            stuck.sampling_params.stop_token_ids.append(7)
            await ask(stub, stuck)
        assert raised.value.code() is grpc.StatusCode.FAILED_PRECONDITION
        assert await ask_poisoned(stub, 0, 1) is grpc.StatusCode.INTERNAL
        stats = scheduler.cluster.step_loops[0].scheduler.request_stats
        assert stats.num_corrupted == 1
        scheduler.cluster.check()

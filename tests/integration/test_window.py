"""The effective window through router, scheduler and workers with pools of different sizes."""

import grpc
import pytest

from gpu_worker.simulated.simulated_runner import SimulatedConfig, SimulatedRunner
from protos.inference.v1 import inference_pb2 as pb
from protos.inference.v1 import inference_pb2_grpc
from rpc.transport.channel import open_channel
from scheduler_svc.config import SchedulerConfig
from tests.integration.stack import running_router, running_scheduler, running_worker
from tests.waiting import eventually

SMALL, LARGE = 4, 16
"""Blocks of 16 tokens."""
PROMPT = [65] * 20


def runner(num_gpu_blocks: int) -> SimulatedRunner:
    config = SimulatedConfig(
        max_model_len=1024, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=0, step_ns=2_000_000
    )
    return SimulatedRunner(config)


def make_request(num_prompt_tokens: int = len(PROMPT), **sampling: object) -> pb.GenerateRequest:
    params = pb.SamplingParams(ignore_eos=True, **sampling)  # type: ignore[arg-type]
    prompt = pb.TokenIds(ids=[65] * num_prompt_tokens)
    return pb.GenerateRequest(token_ids=prompt, sampling_params=params)


async def test_defaults_are_cut_and_the_window_follows_the_largest_worker() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0, worker_wait=0)) as scheduler,
        running_worker(scheduler.address, lambda: runner(SMALL)),
        running_worker(scheduler.address, lambda: runner(LARGE)) as large,
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        client = inference_pb2_grpc.InferenceServiceStub(channel)

        async def window() -> int:
            return int((await client.GetModel(pb.GetModelRequest())).effective_max_model_len)

        async def num_tokens(request: pb.GenerateRequest) -> int:
            answers = [answer async for answer in client.Generate(request)]
            return answers[-1].usage.completion_tokens

        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        await eventually(lambda: router.schedulers.models.of().window == LARGE * 16 + 1)
        assert await window() == LARGE * 16 + 1
        assert await num_tokens(make_request()) == LARGE * 16 + 1 - 20
        # One block of the prompt is shared, 15 are left for two branches.
        assert await num_tokens(make_request(n=2)) == 2 * (16 * (1 + 15 // 2) + 1 - 20)
        search = pb.BeamSearch(width=2)
        assert await num_tokens(make_request(beam_search=search)) == 16 * (1 + 15 // 2) + 1 - 20

        begun = client.Generate(make_request())
        await begun.read()
        await large.kill()
        with pytest.raises(grpc.aio.AioRpcError) as lost:
            while await begun.read() is not grpc.aio.EOF:
                pass
        assert lost.value.code() is grpc.StatusCode.UNAVAILABLE
        await eventually(lambda: router.schedulers.models.of().window == SMALL * 16 + 1)
        assert await window() == SMALL * 16 + 1
        assert await num_tokens(make_request()) == SMALL * 16 + 1 - 20
        with pytest.raises(grpc.aio.AioRpcError) as too_long:
            await num_tokens(make_request(65))
        assert too_long.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        details = too_long.value.details() or ""
        assert details.startswith("token_ids.ids: 'a prompt of 65 tokens' is not allowed")
        assert "maximum context length is 65 tokens" in details
        with pytest.raises(grpc.aio.AioRpcError) as too_many:
            await num_tokens(make_request(max_tokens=100))
        assert too_many.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert not len(scheduler.cluster.requests)
        scheduler.cluster.check()

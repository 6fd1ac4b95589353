"""Sampling parameters through the stack, on a small real model: alone, crowded, after a loss."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.config import GIB, CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service import runner_factory as factory
from tests.gpu_worker.tiny_models import LATENTS, VOCAB, make_model
from tests.integration.stack import (
    RunningScheduler,
    RunningWorker,
    restarted,
    running_router,
    running_scheduler,
    running_worker,
)
from tests.native_kernels import skip_without_native_kernels
from tests.ports import free_port
from tests.waiting import eventually

NUM_TOKENS = 40
PARAMS = [
    pb.SamplingParams(),
    pb.SamplingParams(presence_penalty=1.5, frequency_penalty=0.5),
    pb.SamplingParams(repetition_penalty=1.8, temperature=0.7),
    pb.SamplingParams(repetition_penalty=1.8, temperature=0),
    pb.SamplingParams(top_p=0.6, bad_words=["w7", "w8 w9"], logprobs=3),
    pb.SamplingParams(typical_p=0.5, min_p=0.01, top_k=40),
    pb.SamplingParams(logit_bias=[pb.LogitBias(token_id=i, bias=2) for i in (5, 6)], n=2),
    pb.SamplingParams(allowed_token_ids=range(10, 30), temperature=2, prompt_logprobs=2),
    pb.SamplingParams(logprob_token_ids=[9, 0, 5], n=2, best_of=2, prompt_logprobs=1),
    pb.SamplingParams(beam_search=pb.BeamSearch(width=3), n=2),
]
PREFIXES = [np.random.default_rng(i).integers(3, VOCAB, 33).tolist() for i in range(4)]
FAMILIES = (
    "llama3",
    "qwen3-moe",
    "cohere2",
    "deepseek-v2",
    "gemma4",
    "glm4-moe",
    "gpt-oss",
    "ministral3",
    "olmo3",
)
"""A model of each kind that native programs compute."""


@pytest.fixture
def tiny(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    family = getattr(request, "param", "llama3")
    if family != "llama3":  # which PyTorch computes as well
        skip_without_native_kernels()
    heads = LATENTS if family == "deepseek-v2" else {"head_dim": 16}
    make_model(tmp_path, family, hidden_size=96, **heads)
    if family != "llama3":
        assert make_runner(tmp_path, None).model.numerics.kernels.startswith("native")
    return tmp_path


def make_runner(path: Path, num_blocks: int | None) -> Runner:
    size = 0 if num_blocks is None else num_blocks * row_bytes(path)
    return factory.make_runner(
        RunnerConfig(
            model=ModelConfig(model=str(path), dtype="float32"),
            cache=CacheConfig(
                block_size=16,
                max_num_seqs=16,
                max_num_batched_tokens=64,
                swap_space=0,
                kv_cache_memory=size / GIB or None,
            ),
            device=DeviceConfig(device="cpu", num_threads=1),
        )
    )


def row_bytes(path: Path) -> int:
    """Returns the bytes of a block of each group of layers."""
    capacity = make_runner(path, None).profile()
    return capacity.block_bytes * len(capacity.groups)


class Stack:
    def __init__(
        self,
        scheduler: RunningScheduler,
        workers: list[RunningWorker],
        stub: pb_grpc.InferenceServiceStub,
    ) -> None:
        self.scheduler = scheduler
        self.workers = workers
        self._stub = stub
        self.num_tokens = 0

    async def ask(self, number: int) -> tuple[list[int], ...]:
        """Returns the tokens of each sequence, and the ranks of the prompt's."""
        own = PARAMS[number % len(PARAMS)]
        params = pb.SamplingParams(max_tokens=NUM_TOKENS, ignore_eos=True, n=1)
        params.MergeFrom(own)
        if not own.HasField("beam_search"):
            params.seed = number
        prompt = PREFIXES[number % 4] + [*range(3, 3 + number)]
        request = pb.GenerateRequest(token_ids=pb.TokenIds(ids=prompt), sampling_params=params)
        tokens: dict[int, list[int]] = {i: [] for i in range(params.n)}
        ranks: list[int] = []
        async for response in self._stub.Generate(request):
            ranks += [one.sampled.rank for one in response.prompt_logprobs]
            for delta in response.outputs:
                tokens[delta.index] += delta.token_ids
                self.num_tokens += len(delta.token_ids)
                named = list(params.logprob_token_ids)
                assert (params.HasField("logprobs") or bool(named)) == bool(delta.logprobs)
                if named:
                    found = [[top.token_id for top in one.top] for one in delta.logprobs]
                    assert found == [named] * len(delta.token_ids)
        wants = params.HasField("prompt_logprobs")
        assert len(ranks) == (len(prompt) - 1 if wants else 0)
        assert all(len(one) == NUM_TOKENS for one in tokens.values())
        return (*tokens.values(), ranks)


@contextlib.asynccontextmanager
async def make_stack(
    path: Path, *, num_workers: int, num_blocks: int, **settings: Any
) -> AsyncIterator[Stack]:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(
            running_scheduler(SchedulerConfig(port=free_port(), **settings))
        )
        make = partial(make_runner, path, num_blocks)
        workers = [
            await stack.enter_async_context(running_worker(scheduler.address, make))
            for _ in range(num_workers)
        ]
        router = await stack.enter_async_context(running_router(scheduler.address))
        await eventually(lambda: len(scheduler.cluster.step_loops) == num_workers)
        channel = await stack.enter_async_context(open_channel(router.server.address))
        yield Stack(scheduler, workers, pb_grpc.InferenceServiceStub(channel))
        scheduler.cluster.check()


@pytest.mark.parametrize("tiny", FAMILIES, indirect=True)
async def test_tokens_do_not_depend_on_company_preemption_or_the_worker(tiny: Path) -> None:
    """Nor on prefixes that are in the cache."""
    numbers = range(2 * len(PARAMS))
    async with make_stack(tiny, num_workers=1, num_blocks=64, prefix_caching=False) as stack:
        alone = [await stack.ask(number) for number in numbers]
        assert len({str(answer) for answer in alone}) == len(alone)
    async with make_stack(tiny, num_workers=2, num_blocks=14) as stack:
        asked = [asyncio.create_task(stack.ask(number)) for number in numbers]
        await eventually(lambda: stack.num_tokens > 150)
        await stack.workers[0].kill()
        assert await asyncio.gather(*asked) == alone
        (step_loop,) = stack.scheduler.cluster.step_loops
        assert step_loop.scheduler.preemption.num_preemptions > 0
        assert step_loop.scheduler.planner.num_prefix_hits > 0


async def test_tokens_do_not_depend_on_schedulers_that_are_lost(tiny: Path) -> None:
    numbers = range(2 * len(PARAMS))
    async with make_stack(tiny, num_workers=1, num_blocks=64) as stack:
        alone = [await stack.ask(number) for number in numbers]
    async with make_stack(tiny, num_workers=1, num_blocks=64) as stack:
        asked = [asyncio.create_task(stack.ask(number)) for number in numbers]
        await eventually(lambda: stack.num_tokens > 150)
        async with restarted(stack.scheduler) as restart:
            assert await asyncio.gather(*asked) == alone
            assert len(restart.cluster.requests.history) > 0

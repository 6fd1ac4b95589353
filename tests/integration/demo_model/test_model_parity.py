"""The demo model in float32 through router, scheduler and workers: transformers' tokens, exactly.

Whatever the batch, the chunking, preemption or the number of workers.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator

import pytest

from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import PreemptionMode, SchedulerConfig
from signalbox_scheduler.workers.cluster import Cluster
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service import runner_factory as factory
from tests.gpu_worker.generation import Driver
from tests.integration.demo_model.prompts import PROMPTS
from tests.integration.stack import (
    running_router,
    running_scheduler,
    running_worker,
)
from tests.transformers_demo import DEMO, demo, greedy_texts
from tests.waiting import eventually

pytestmark = [pytest.mark.model, pytest.mark.xdist_group("demo")]

NUM_NEW_TOKENS = 16


@pytest.fixture(scope="module")
def runners(runner: Runner) -> list[Runner]:
    """Two loaded models, for as many workers."""
    return [runner, make_runner()]


@pytest.fixture(scope="module")
def reference(runners: list[Runner]) -> list[list[int]]:
    return greedy_texts(demo().model, PROMPTS, guess_tokens(runners[0]))


def guess_tokens(runner: Runner) -> list[list[int]]:
    """What our own model says, without a service: to make the reference of, not to be believed."""
    tokenizer, num_blocks = demo().tokenizer, 256
    runner.init_cache_engine(num_gpu_blocks=num_blocks, num_cpu_blocks=0)
    prompts = [tokenizer(prompt)["input_ids"] for prompt in PROMPTS]
    return [
        tokens
        for start in range(0, len(prompts), 25)
        for tokens in Driver(runner=runner).generate(
            prompts[start : start + 25], num_tokens=NUM_NEW_TOKENS
        )
    ]


def make_runner() -> Runner:
    """In float32, in which tokens are to be those of transformers."""
    return factory.make_runner(
        RunnerConfig(
            model=ModelConfig(model=str(DEMO), max_model_len=512, dtype="float32"),
            cache=CacheConfig(kv_cache_memory=1 / 4, swap_space=1 / 16, max_num_seqs=32),
            device=DeviceConfig(device="cpu"),
        )
    )


@contextlib.asynccontextmanager
async def make_stack(
    runners: list[Runner], config: SchedulerConfig
) -> AsyncIterator[tuple[Cluster, pb_grpc.InferenceServiceStub]]:
    async with contextlib.AsyncExitStack() as stack:
        scheduler = await stack.enter_async_context(running_scheduler(config))
        for runner in runners:
            await stack.enter_async_context(
                running_worker(scheduler.address, lambda runner=runner: runner)
            )
        await eventually(lambda: len(scheduler.cluster.step_loops) == len(runners))
        router = await stack.enter_async_context(running_router(scheduler.address))
        channel = await stack.enter_async_context(open_channel(router.server.address))
        yield scheduler.cluster, pb_grpc.InferenceServiceStub(channel)
        step_loops = scheduler.cluster.step_loops
        await eventually(lambda: not any(one.scheduler.has_unfinished for one in step_loops))
        scheduler.cluster.check()
        for step_loop in step_loops:
            pool = step_loop.scheduler.blocks.gpu
            assert pool.num_free == pool.num_blocks


async def generate_all(
    stub: pb_grpc.InferenceServiceStub, *, concurrency: int, prompts: list[str]
) -> list[list[int]]:
    slots = asyncio.Semaphore(concurrency)
    params = pb.SamplingParams(temperature=0, max_tokens=NUM_NEW_TOKENS, min_tokens=NUM_NEW_TOKENS)

    async def one(prompt: str) -> list[int]:
        token_ids: list[int] = []
        async with slots:
            async for response in stub.Generate(
                pb.GenerateRequest(text=prompt, sampling_params=params)
            ):
                for output in response.outputs:
                    token_ids += output.token_ids
        return token_ids

    return await asyncio.gather(*(one(prompt) for prompt in prompts))


SOME = slice(None, None, 4)
"""Of the prompts, where all of them would only take longer; long ones are among them."""
NUM_BLOCKS = 14
"""Fewer than sixteen of the prompts take."""
CASES = {
    "in chunks": (1, slice(None), SchedulerConfig(port=0, max_num_batched_tokens=64)),
    "recomputed": (
        1,
        SOME,
        SchedulerConfig(
            port=0,
            num_gpu_blocks_override=NUM_BLOCKS,
            watermark=0,
            preemption_mode=PreemptionMode.RECOMPUTE,
        ),
    ),
    "swapped": (1, SOME, SchedulerConfig(port=0, num_gpu_blocks_override=NUM_BLOCKS, watermark=0)),
    "two workers": (2, SOME, SchedulerConfig(port=0)),
}


@pytest.mark.parametrize("case", CASES)
async def test_greedy_tokens_are_those_of_transformers(
    case: str, runners: list[Runner], reference: list[list[int]]
) -> None:
    num_workers, which, config = CASES[case]
    async with make_stack(runners[:num_workers], config) as (cluster, stub):
        outputs = await generate_all(stub, concurrency=16, prompts=PROMPTS[which])
        assert outputs == reference[which]
        preemptions = sum(
            step_loop.scheduler.preemption.num_preemptions for step_loop in cluster.step_loops
        )
        assert bool(preemptions) is (config.num_gpu_blocks_override is not None)


async def test_cached_prefixes_do_not_change_the_tokens(
    runners: list[Runner], reference: list[list[int]]
) -> None:
    async with make_stack(runners[:1], SchedulerConfig(port=0)) as (cluster, stub):
        for _ in range(2):
            outputs = await generate_all(stub, concurrency=16, prompts=PROMPTS[SOME])
            assert outputs == reference[SOME]
        assert cluster.step_loops[0].scheduler.planner.num_prefix_hits > 0


@pytest.mark.usefixtures("keeping_pays")
async def test_prefixes_that_come_back_from_the_cpu_do_not_change_the_tokens(
    runners: list[Runner], reference: list[list[int]]
) -> None:
    longest = sorted(range(len(PROMPTS)), key=lambda i: -len(PROMPTS[i]))[:6]
    prompts = [PROMPTS[i] for i in longest]
    config = SchedulerConfig(port=0, num_gpu_blocks_override=10, watermark=0)
    async with make_stack(runners[:1], config) as (cluster, stub):
        for _ in range(2):
            outputs = await generate_all(stub, concurrency=3, prompts=prompts)
            assert outputs == [reference[i] for i in longest]
        assert cluster.step_loops[0].scheduler.planner.num_cpu_prefix_hits > 0


@pytest.mark.usefixtures("keeping_pays")
async def test_a_chat_finds_its_own_prompt_and_answer(runners: list[Runner]) -> None:
    config = SchedulerConfig(port=0, num_gpu_blocks_override=15)  # the CPU keeps what does not fit
    async with make_stack(runners[:1], config) as (cluster, stub):
        chat = [message(pb.CHAT_ROLE_USER, "Name the planets of the solar system.")]
        answer, first = await say(stub, chat)
        await say(stub, [message(pb.CHAT_ROLE_USER, "Tell me a story. " * 30)])
        chat += [
            message(pb.CHAT_ROLE_ASSISTANT, answer),
            message(pb.CHAT_ROLE_USER, "Which is the largest?"),
        ]
        _, second = await say(stub, chat)
        num_computed = first.prompt_tokens + first.completion_tokens - 1  # the last is only drawn
        assert first.cached_tokens == 0
        assert second.cached_tokens >= num_computed // 16 * 16 > first.prompt_tokens
        assert cluster.step_loops[0].scheduler.planner.num_cpu_prefix_hits > 0


def message(role: pb.ChatRole, text: str) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=[pb.ContentPart(text=text)])


async def say(
    stub: pb_grpc.InferenceServiceStub, messages: list[pb.ChatMessage]
) -> tuple[str, pb.Usage]:
    params = pb.SamplingParams(temperature=0, max_tokens=32)
    text, usage = "", pb.Usage()
    async for response in stub.Chat(pb.ChatRequest(messages=messages, sampling_params=params)):
        text += "".join(output.text for output in response.outputs)
        if response.HasField("usage"):
            usage = response.usage
    return text, usage

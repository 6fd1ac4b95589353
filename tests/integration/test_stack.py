"""Router, scheduler and simulated workers together, through the public API over real gRPC."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from tokenizers import Tokenizer

from signalbox_contract.sections.drafts import DraftSource
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc as pb_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.runner.loading.byte_tokenizer import tokenizer_files
from tests.integration.stack import (
    RunningScheduler,
    assert_idle,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually

TOKENIZER = Tokenizer.from_str(
    tokenizer_files(vocab_size=512, max_model_len=4096)["tokenizer.json"].decode()
)


@dataclass(slots=True)
class Stack:
    scheduler: RunningScheduler
    stub: pb_grpc.InferenceServiceStub


@contextlib.asynccontextmanager
async def make_stack(
    *, num_workers: int = 1, config: SchedulerConfig | None = None, **worker: Any
) -> AsyncIterator[Stack]:
    async with contextlib.AsyncExitStack() as stack:
        config = config or SchedulerConfig(port=0)
        scheduler = await stack.enter_async_context(running_scheduler(config))
        for _ in range(num_workers):
            await stack.enter_async_context(running_worker(scheduler.address, simulated(**worker)))
        router = await stack.enter_async_context(running_router(scheduler.address))
        await eventually(lambda: len(scheduler.cluster.step_loops) == num_workers)
        channel = await stack.enter_async_context(open_channel(router.server.address))
        running = Stack(scheduler, pb_grpc.InferenceServiceStub(channel))
        yield running
        await assert_idle(scheduler)


@dataclass(slots=True)
class Answer:
    """What a stream said, by sequence."""

    text: dict[int, str] = field(default_factory=dict)
    token_ids: dict[int, list[int]] = field(default_factory=dict)
    logprobs: dict[int, list[pb.TokenLogprobs]] = field(default_factory=dict)
    finish: dict[int, pb.Finish] = field(default_factory=dict)
    usage: pb.Usage | None = None

    def add(self, response: pb.GenerateResponse) -> None:
        assert self.usage is None, "a message after the last"
        for delta in response.outputs:
            assert delta.index not in self.finish, "a delta after the last"
            self.text[delta.index] = self.text.get(delta.index, "") + delta.text
            self.token_ids.setdefault(delta.index, []).extend(delta.token_ids)
            self.logprobs.setdefault(delta.index, []).extend(delta.logprobs)
            if delta.HasField("finish"):
                self.finish[delta.index] = delta.finish
        if response.HasField("usage"):
            self.usage = response.usage


def make_request(prompt: list[int], **params: object) -> pb.GenerateRequest:
    settings = {"temperature": 0, "max_tokens": 16, "ignore_eos": True} | params
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt), sampling_params=pb.SamplingParams(**settings)
    )


async def ask(stub: pb_grpc.InferenceServiceStub, request: pb.GenerateRequest) -> Answer:
    answer = Answer()
    async for response in stub.Generate(request):
        answer.add(response)
    return answer


def decode(token_ids: list[int]) -> str:
    return str(TOKENIZER.decode(token_ids, skip_special_tokens=True))


async def test_a_prediction_spares_steps_and_changes_no_token() -> None:
    letters = [TOKENIZER.token_to_id(letter) for letter in "abcdefgh"]
    asked: dict[str, Any] = {"max_tokens": 24, "allowed_token_ids": letters}
    async with make_stack(speculation=SpeculationConfig(num_tokens=4)) as stack:
        plain = await ask(stack.stub, make_request([1, 2], **asked, speculation=False))
        predicted = await ask(stack.stub, make_request([1, 2], **asked, prediction=plain.text[0]))
    assert predicted.token_ids == plain.token_ids
    assert plain.usage is not None and not plain.usage.HasField("speculation")
    assert predicted.usage is not None
    use = predicted.usage.speculation
    assert 0 < use.num_predicted_accepted <= use.num_predicted
    assert predicted.usage.completion_tokens == 24


async def test_recent_outputs_spare_steps_of_the_same_salt_alone() -> None:
    drafting = SpeculationConfig(num_tokens=4, sources=(DraftSource.RECENT,), recent_bytes=1 << 20)
    request = make_request([1, 2, 3, 4, 5], max_tokens=40)
    accepted, token_ids = [], []
    async with make_stack(speculation=drafting) as stack:
        for salt in ("a", "b", "a"):
            request.cache_salt = salt
            answer = await ask(stack.stub, request)
            assert answer.usage is not None
            accepted.append(answer.usage.speculation.num_accepted)
            token_ids.append(answer.token_ids)
    assert token_ids[0] == token_ids[1] == token_ids[2]
    assert accepted[:2] == [0, 0]
    assert accepted[2] > 0


async def test_sixty_four_streams_of_different_lengths_finish() -> None:
    rng = random.Random(1)
    prompts = [[rng.randrange(256) for _ in range(rng.randrange(1, 80))] for _ in range(64)]
    async with make_stack(num_workers=2, num_gpu_blocks=60, num_cpu_blocks=40) as stack:
        lengths = [1 + i * 2 for i in range(64)]
        answers = await asyncio.gather(
            *(
                ask(stack.stub, make_request(prompt, max_tokens=length))
                for prompt, length in zip(prompts, lengths, strict=True)
            )
        )
        for prompt, length, answer in zip(prompts, lengths, answers, strict=True):
            expected = expected_tokens(prompt, num_tokens=length)
            assert answer.token_ids[0] == expected
            assert answer.text[0] == decode(expected)
            assert answer.finish[0].reason == pb.FINISH_REASON_LENGTH
            assert answer.usage == pb.Usage(prompt_tokens=len(prompt), completion_tokens=length)


async def test_tokens_arrive_while_later_ones_are_computed() -> None:
    async with make_stack(step_ns=3_000_000) as stack:
        call = stack.stub.Generate(make_request([1, 2, 3], max_tokens=2000))
        for _ in range(3):
            await call.read()
        assert len(stack.scheduler.cluster.requests) == 1
        call.cancel()


@pytest.mark.parametrize("state", ["queued", "prefill", "decode"])
async def test_a_client_that_leaves_frees_its_blocks_within_two_steps(state: str) -> None:
    async with make_stack(
        step_ns=20_000_000, max_num_batched_tokens=32, max_num_seqs=1 if state == "queued" else 8
    ) as stack:
        cluster = stack.scheduler.cluster
        other = asyncio.create_task(ask(stack.stub, make_request([9], max_tokens=40)))
        scheduler = cluster.step_loops[0].scheduler
        await eventually(lambda: bool(scheduler.running))
        prompt = [1] * (3000 if state == "prefill" else 5)
        call = stack.stub.Generate(make_request(prompt, max_tokens=500))
        await eventually(lambda: len(cluster.requests) == 2)
        if state == "decode":
            await call.read()
        call.cancel()
        await eventually(lambda: len(cluster.requests) == 1)
        step_of_abort = scheduler.num_steps
        async with asyncio.timeout(EVENT_S):
            while num_used_blocks(scheduler) != num_held_blocks(scheduler):  # noqa: ASYNC110
                await asyncio.sleep(0)  # a slow machine may compute steps in 5 ms of the loop
        assert scheduler.num_steps - step_of_abort <= 2
        assert (await other).token_ids[0] == expected_tokens([9], num_tokens=40)


def num_used_blocks(scheduler: Scheduler) -> int:
    return scheduler.blocks.gpu.num_blocks - scheduler.blocks.gpu.num_free


def num_held_blocks(scheduler: Scheduler) -> int:
    """Blocks of the groups that live."""
    return sum(len(seq.block_table) for group in scheduler.running for seq in group.sequences)


async def test_branches_and_seeds() -> None:
    async with make_stack() as stack:
        request = make_request([5, 6], n=4, temperature=1.0, seed=7)
        first, again = [await ask(stack.stub, request) for _ in range(2)]
        assert first.token_ids == again.token_ids
        assert first.token_ids == {
            branch: expected_tokens([5, 6], num_tokens=16, temperature=1.0, seed=7, branch=branch)
            for branch in range(4)
        }
        assert first.usage == pb.Usage(prompt_tokens=2, completion_tokens=64)


async def test_a_stop_string_ends_one_branch_and_keeps_what_is_before_it() -> None:
    prompt = [4, 5, 6]
    whole = decode(expected_tokens(prompt, num_tokens=40))
    stop = whole[20:24]
    at = whole.index(stop)
    async with make_stack(step_ns=1_000_000) as stack:
        answer = await ask(stack.stub, make_request(prompt, max_tokens=40, stop=[stop]))
        assert answer.text[0] == whole[:at]
        assert answer.finish[0].reason == pb.FINISH_REASON_STOP_STRING
        assert answer.finish[0].stop == stop
        assert answer.usage is not None
        assert answer.usage.completion_tokens == len(answer.token_ids[0]) < 40

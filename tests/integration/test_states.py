"""Groups of states of recurrent layers through all services, with a worker that computes them."""

import asyncio
import random
from collections.abc import Callable

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.config import SpeculationConfig
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from tests.gpu_worker.foresight import Foresight
from tests.integration.stack import (
    assert_idle,
    open_channel,
    running_router,
    running_scheduler,
    running_worker,
    until_workers,
)
from tests.integration.test_stack import ask, make_request, make_stack, pb_grpc
from tests.simulated_model import expected_tokens

GROUPS = (FULL_GROUP, CacheGroup(kind="state", state_blocks=3))
DRAFTS = SpeculationConfig(num_tokens=5)


def prompts_of(seed: int, *, count: int) -> list[list[int]]:
    """Returns prompts of which many begin alike, and some are asked twice."""
    draws = random.Random(seed)
    shared = [draws.randrange(256) for _ in range(90)]
    prompts = [
        [*shared[: draws.choice([0, 16, 40, 90])], *(draws.randrange(256) for _ in range(length))]
        for length in draws.choices(range(1, 60), k=count)
    ]
    return [*prompts, *prompts[::3]]


async def test_tokens_are_right_with_hits_chunks_preemptions_and_drafts(
    foresight: Foresight,
) -> None:
    prompts = prompts_of(1, count=24)
    expected = [expected_tokens(one, num_tokens=100, has_states=True) for one in prompts]
    foresight.texts += [a + b for a, b in zip(prompts, expected, strict=True)]
    async with make_stack(
        groups=GROUPS,
        num_gpu_blocks=60,
        num_cpu_blocks=40,
        max_num_batched_tokens=48,
        speculation=DRAFTS,
    ) as stack:
        answers = await asyncio.gather(
            *(ask(stack.stub, make_request(prompt, max_tokens=100)) for prompt in prompts)
        )
        assert [answer.token_ids[0] for answer in answers] == expected
        (loop,) = stack.scheduler.cluster.step_loops
        preemption, planner = loop.scheduler.preemption, loop.scheduler.planner
        assert preemption.num_preemptions > preemption.num_recomputes  # some are swapped
        assert planner.num_prefix_hits
        assert planner.num_cpu_prefix_hits
        use = loop.scheduler.output_processor.speculation
        assert 0 < use.num_accepted < use.num_drafts


@pytest.mark.parametrize("num_tokens", [31, 32, 33])
async def test_branches_go_on_in_states_of_their_own(num_tokens: int) -> None:
    prompt = list(range(1, num_tokens + 1))
    async with make_stack(groups=GROUPS, num_gpu_blocks=120) as stack:
        for _ in range(2):  # computed, and found
            request = make_request(prompt, max_tokens=40, temperature=1, seed=5, n=3)
            answer = await ask(stack.stub, request)
            for branch, token_ids in answer.token_ids.items():
                assert token_ids == expected_tokens(
                    prompt, num_tokens=40, temperature=1, seed=5, branch=branch, has_states=True
                )
            assert len(answer.token_ids) == 3


class LosesParts(SimulatedRunner):
    """Loses all blocks of a state but the first, before it is read."""

    def execute(self, batch: Batch) -> BatchOutput:
        if batch.states is not None and len(batch.states.reads) > 1:
            self.simulation.gpu_kv[batch.states.reads[0, 1:]] = 0
        return super().execute(batch)


class FailsOnce(SimulatedRunner):
    """Raises in one step, having changed states."""

    num_batches = 0

    def execute(self, batch: Batch) -> BatchOutput:
        samples = super().execute(batch)
        self.num_batches += 1
        if self.num_batches == 12:
            raise RuntimeError("illegal instruction")
        return samples


def runner_of(kind: type[SimulatedRunner]) -> Callable[[], Runner]:
    config = SimulatedConfig(groups=GROUPS, num_gpu_blocks=120, speculation=DRAFTS)
    return lambda: kind(config)


async def answers_of(kind: type[SimulatedRunner]) -> list[bool]:
    """Returns whether the answer to each of some requests at a time is right."""
    prompts = prompts_of(2, count=6)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, runner_of(kind)),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        stub = pb_grpc.InferenceServiceStub(channel)
        await until_workers(scheduler, 1)
        (loop,) = scheduler.cluster.step_loops
        asked = (ask(stub, make_request(prompt, max_tokens=40)) for prompt in prompts)
        answers = await asyncio.gather(*asked)
        assert list(scheduler.cluster.step_loops) == [loop], "the worker was lost"
        await assert_idle(scheduler)
    return [
        answer.token_ids[0] == expected_tokens(prompt, num_tokens=40, has_states=True)
        for prompt, answer in zip(prompts, answers, strict=True)
    ]


async def test_a_state_whose_other_blocks_are_lost_changes_tokens() -> None:
    assert not all(await answers_of(LosesParts))


async def test_sequences_of_a_step_that_failed_are_computed_again(foresight: Foresight) -> None:
    for prompt in prompts_of(2, count=6):
        tokens = expected_tokens(prompt, num_tokens=40, has_states=True)
        foresight.texts.append(prompt + tokens)
    assert all(await answers_of(FailsOnce))


CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "<|im_start|>assistant\n"
)


async def test_the_end_of_a_system_text_is_found_from_the_first_repetition_on() -> None:
    async with make_stack(groups=GROUPS, num_gpu_blocks=120) as stack:
        found = []
        for text in ("Hello, who is it?", "What is the capital of France?"):
            messages = [
                pb.ChatMessage(role=role, content=[pb.ContentPart(text=said)])
                for role, said in (
                    ("CHAT_ROLE_SYSTEM", "Be brief. " * 20),
                    ("CHAT_ROLE_USER", text),
                )
            ]
            request = pb.ChatRequest(
                messages=messages,
                chat_template=CHATML,
                sampling_params=pb.SamplingParams(max_tokens=3),
            )
            answers = [answer async for answer in stack.stub.Chat(request)]
            found.append(answers[-1].usage.cached_tokens)
        assert found[0] == 0 < found[1]

"""One router before a scheduler that generates and one that pools, with simulated workers."""

import argparse
import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import grpc
import pytest

from signalbox.bench.grpc_target import GrpcTarget
from signalbox.client.connection import PLAIN
from signalbox.client.scheduler_client import SchedulerClient
from signalbox.client.service_client import NotKnown
from signalbox.commands import models
from signalbox.commands.inspect import top
from signalbox_client import AsyncClient
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_router.generation.pooling.activations import activated
from signalbox_router.main import Router
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from tests.grpc_errors import code_of
from tests.integration.stack import (
    RunningScheduler,
    assert_idle,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.simulated_model import expected_vector
from tests.waiting import eventually

POOLING = SIMULATED_POOLING["mean"]
PROMPT = [7, 8, 9]


def parsed(command: Any, *arguments: str) -> dict[str, Any]:
    parser = argparse.ArgumentParser()
    command.add_flags(parser)
    return vars(parser.parse_args(arguments))


@dataclass(slots=True)
class Both:
    """The services of two models."""

    chat: RunningScheduler
    vectors: RunningScheduler
    router: Router
    stub: Any

    async def generate(self, model: str = "") -> list[int]:
        params = pb.SamplingParams(max_tokens=8, ignore_eos=True, temperature=0)
        tokens = pb.TokenIds(ids=PROMPT)
        request = pb.GenerateRequest(token_ids=tokens, model=model, sampling_params=params)
        answers = [one async for one in self.stub.Generate(request)]
        return [token for one in answers for output in one.outputs for token in output.token_ids]

    async def embed(self, model: str = "") -> None:
        """Fails unless each vector is that of its input."""
        inputs = [[1 + i, *PROMPT] for i in range(20)]
        tokens = [pb.PoolingInput(token_ids=pb.TokenIds(ids=one)) for one in inputs]
        answer = await self.stub.Embed(pb.EmbedRequest(inputs=tokens, model=model))
        for token_ids, got in zip(inputs, answer.embeddings, strict=True):
            expected = activated(expected_vector(token_ids, model=POOLING), POOLING.activation)
            assert list(got.values) == expected.tolist()

    async def until_served(self, number: int) -> None:
        await eventually(lambda: len(self.router.schedulers.models.served) == number)


@contextlib.asynccontextmanager
async def serving() -> AsyncIterator[Both]:
    """Ends with nothing at the router and every block free."""
    async with (
        running_scheduler(SchedulerConfig(port=0)) as chat,
        running_scheduler(SchedulerConfig(port=0)) as vectors,
        running_worker(chat.address, simulated(name="chat")),
        running_worker(vectors.address, simulated(name="vectors", pooling=POOLING)),
        running_router(chat.address, vectors.address) as router,
        open_channel(router.server.address) as channel,
    ):
        both = Both(chat, vectors, router, inference_pb2_grpc.InferenceServiceStub(channel))
        await both.until_served(2)
        yield both
        await eventually(lambda: not router.live.num_live and not router.schedulers.num_live)
        await assert_idle(both.chat)
        await assert_idle(both.vectors)


async def test_tokens_and_vectors_are_those_of_each_models_worker() -> None:
    async with serving() as both:
        alone = await both.generate("chat")
        assert len(alone) == 8
        together = await asyncio.gather(
            both.generate(), both.embed(), both.generate("chat"), both.embed("vectors")
        )
        assert together[0] == together[2] == alone
        for refused in (both.generate("vectors"), both.embed("chat")):
            assert await code_of(refused) is grpc.StatusCode.FAILED_PRECONDITION


async def test_commands_see_both_models(capsys: pytest.CaptureFixture[str]) -> None:
    async with serving() as both:
        address = both.router.server.address
        async with AsyncClient(address) as client:
            listed = await client.models()
            assert [(one.name, one.task) for one in listed] == [
                ("chat", "generate"),
                ("vectors", "embed"),
            ]
            assert (await client.model()).name == "chat"
            assert (await client.model("vectors")).task == "embed"
            assert len(await client.embed(["a", "b"])) == 2
            tokens = await client.tokenize("Hi", model="vectors")
            ids = [one.id for one in tokens]
            assert "Hi" in await client.detokenize(ids, model="vectors")
            answer = await client.generate("Hi", max_tokens=4)
        async with GrpcTarget(address, PLAIN) as target:
            assert (await target.model(task="embed")).name == "vectors"
        await asyncio.to_thread(models.run, parsed(models, "--router", address))
        shown = capsys.readouterr().out
        assert "chat" in shown and "vectors" in shown and "embed" in shown
        for scheduler, name in ((both.chat, "chat"), (both.vectors, "vectors")):
            load = await top._look(scheduler.address, PLAIN, 0.01)
            assert load.model_name == name
        async with SchedulerClient(both.chat.address, PLAIN) as one:
            (told,) = await one.explain_all(answer.request_id)
            assert told.num_prompt_tokens == answer.usage.prompt_tokens
        async with SchedulerClient(both.vectors.address, PLAIN) as other:
            with pytest.raises(NotKnown):
                await other.explain_all(answer.request_id)

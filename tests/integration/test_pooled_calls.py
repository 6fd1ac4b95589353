"""Calls for vectors and scores through a router, a scheduler and simulated workers."""

import asyncio

import numpy as np

from signalbox_contract.pooling import PoolingModel
from signalbox_protos.inference.v1 import inference_pb2 as pb
from signalbox_protos.inference.v1 import inference_pb2_grpc
from signalbox_router.generation.pooling.activations import activated
from signalbox_rpc.transport.channel import open_channel
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.runner.simulated.simulated_pooler import SIMULATED_POOLING
from tests.integration.stack import (
    assert_idle,
    running_router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.simulated_model import expected_vector
from tests.waiting import eventually

NUM_INPUTS = 300


def make_inputs() -> list[list[int]]:
    return [[1 + i % 200, *range(1, 2 + i % 90)] for i in range(NUM_INPUTS)]


def make_request(inputs: list[list[int]]) -> pb.EmbedRequest:
    tokens = [pb.PoolingInput(token_ids=pb.TokenIds(ids=one)) for one in inputs]
    return pb.EmbedRequest(inputs=tokens)


def assert_embedded(answer: pb.EmbedResponse, model: PoolingModel) -> None:
    inputs = make_inputs()
    assert len(answer.embeddings) == len(inputs)
    for token_ids, got in zip(inputs, answer.embeddings, strict=True):
        expected = activated(expected_vector(token_ids, model=model), model.activation)
        np.testing.assert_array_equal(np.array(got.values, dtype=np.float32), expected)
    assert answer.usage.prompt_tokens == sum(map(len, inputs))
    assert answer.usage.completion_tokens == 0


async def test_a_lost_worker_changes_no_vector_of_a_call() -> None:
    model = SIMULATED_POOLING["mean"]
    make = simulated(pooling=model, block_size=8, num_gpu_blocks=200, max_num_batched_tokens=64)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make) as first,
        running_worker(scheduler.address, make),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        await until_workers(scheduler, 2)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = asyncio.ensure_future(stub.Embed(make_request(make_inputs())))
        await eventually(lambda: bool(len(scheduler.cluster.requests)))
        await first.kill()
        assert_embedded(await call, model)
        await assert_idle(scheduler)
        await eventually(lambda: not router.live.num_live and not router.schedulers.num_live)


async def test_a_cancelled_call_leaves_nothing_behind() -> None:
    make = simulated(pooling=SIMULATED_POOLING["bidirectional"], num_gpu_blocks=200)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        await until_workers(scheduler, 1)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        call = stub.Embed(make_request(make_inputs()))
        await eventually(lambda: bool(len(scheduler.cluster.requests)))
        call.cancel()
        await assert_idle(scheduler)
        await eventually(lambda: not router.live.num_live and not router.schedulers.num_live)


async def test_documents_are_scored_each_with_its_query() -> None:
    make = simulated(pooling=SIMULATED_POOLING["rerank"], num_gpu_blocks=200)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, make),
        running_router(scheduler.address) as router,
        open_channel(router.server.address) as channel,
    ):
        await until_workers(scheduler, 1)
        stub = inference_pb2_grpc.InferenceServiceStub(channel)
        documents = ["one", "two", "three"]
        together = await stub.Score(pb.ScoreRequest(queries=["q"], documents=documents))
        apart = [
            await stub.Score(pb.ScoreRequest(queries=["q"], documents=[one])) for one in documents
        ]
        assert list(together.scores) == [one.scores[0] for one in apart]
        assert len({*together.scores}) == len(documents)
        await assert_idle(scheduler)

"""What a worker that joins says of itself."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from tests.hostile.case import Answer, Case, Target

EPOCH = 1
NUM_BLOCKS = 40_000_000
"""A list of so many numbers, and one of their owners, are 1.8 GB."""


class Boastful(worker_pb2_grpc.WorkerServiceServicer):
    """Says that it serves the model, in a pool of `NUM_BLOCKS`."""

    def __init__(self, model: common_pb2.ModelInfo) -> None:
        self._model = model

    async def GetWorkerInfo(
        self, request: pb.GetWorkerInfoRequest, context: Any
    ) -> pb.GetWorkerInfoResponse:
        capacity = common_pb2.WorkerCapacity(
            block_size=16,
            num_gpu_blocks=NUM_BLOCKS,
            max_num_seqs=64,
            max_num_batched_tokens=64,
        )
        return pb.GetWorkerInfoResponse(epoch=EPOCH, model=self._model, capacity=capacity)

    async def InitCacheEngine(
        self, request: pb.InitCacheEngineRequest, context: Any
    ) -> pb.InitCacheEngineResponse:
        return pb.InitCacheEngineResponse()


@contextlib.asynccontextmanager
async def boasting(model: common_pb2.ModelInfo) -> AsyncIterator[int]:
    """Yields the port of such a worker."""
    server = grpc.aio.server()
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(Boastful(model), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield port
    finally:
        await server.stop(None)


async def announce_blocks(target: Target) -> Answer:
    address = f"{target.host}:{target.scheduler_port}"
    async with grpc.aio.insecure_channel(address) as channel:
        scheduler = scheduler_pb2_grpc.SchedulerServiceStub(channel)
        known = await scheduler.GetModel(scheduler_pb2.GetModelRequest())
        async with boasting(known.model) as port:
            join = scheduler_pb2.Join(epoch=EPOCH, address=f"127.0.0.1:{port}")
            call = scheduler_pb2_grpc.WorkerRegistryServiceStub(channel).Register()
            try:
                await call.write(scheduler_pb2.RegisterRequest(join=join))
                await call.read()
            except grpc.aio.AioRpcError as error:
                return Answer(error.code().name, error.details() or "")
            finally:
                call.cancel()
    return Answer("OK")


CASES = (
    Case(
        name="a-worker-of-40-million-blocks",
        attack=announce_blocks,
        codes=frozenset({"FAILED_PRECONDITION"}),
        says="a worker with 40000000 blocks has more than",
        unbounded={"signalbox_contract.model.MAX_BLOCKS": 1 << 31},
    ),
)

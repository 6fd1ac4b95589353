"""A worker that a scheduler has registered, in this process or behind a port."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from signalbox_protos.common.v1 import common_pb2
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_rpc.transport.channel import open_channel
from signalbox_rpc.transport.listening_ports import Endpoint
from signalbox_rpc.transport.server import Server
from signalbox_worker.batch.batch import Batch, BatchOutput
from signalbox_worker.runner.runner import Runner
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.servicer import SERVICE_NAME, WorkerServicer
from signalbox_worker.service.worker import Worker
from tests.gpu_worker.builders import make_config
from tests.waiting import EVENT_S

EPOCH = 7
PROMPT = [5, 6, 7, 8, 9, 10]


class GatedRunner(SimulatedRunner):
    """Computes while the gate is open; may raise."""

    def __init__(self) -> None:
        super().__init__(make_config())
        self.gate = threading.Event()
        self.gate.set()
        self.num_begun = self.num_executed = 0
        self.raises: list[Exception] = []

    def execute(self, batch: Batch) -> BatchOutput:
        self.num_begun += 1
        assert self.gate.wait(EVENT_S)
        self.num_executed += 1
        if self.raises:
            raise self.raises.pop()
        return super().execute(batch)


async def init_cache(
    worker: Worker, *, epoch: int = EPOCH, num_gpu_blocks: int = 16, num_cpu_blocks: int = 4
) -> None:
    await worker.init_cache_engine(
        epoch=epoch, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
    )


async def make_worker(runner: Runner | None = None) -> Worker:
    """Makes a worker that is registered with EPOCH and has its cache."""
    chosen = runner or GatedRunner()
    worker = await Worker.load(lambda: chosen)
    worker.begin_epoch(EPOCH)
    await init_cache(worker)
    return worker


@asynccontextmanager
async def serving(
    runner: Runner | None = None, *, num_gpu_blocks: int = 16, num_cpu_blocks: int = 4
) -> AsyncIterator[worker_pb2_grpc.WorkerServiceStub]:
    """Serves such a worker, connects to it, and gives it a cache of other sizes."""
    worker = await make_worker(runner)
    server = Server(Endpoint())
    add = worker_pb2_grpc.add_WorkerServiceServicer_to_server
    server.add(WorkerServicer(worker), add, name=SERVICE_NAME)
    port = await server.start()
    try:
        async with open_channel(f"127.0.0.1:{port}") as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            await stub.InitCacheEngine(
                pb.InitCacheEngineRequest(
                    epoch=EPOCH, num_gpu_blocks=num_gpu_blocks, num_cpu_blocks=num_cpu_blocks
                )
            )
            yield stub
    finally:
        await server.drain(grace_s=0)
        worker.close()


def make_group(seq_id: int, token_ids: list[int], blocks: list[int]) -> pb.SequenceGroupMetadata:
    """A new sequence of which a step computes everything."""
    sequence = pb.SequenceMetadata(
        seq_id=seq_id,
        token_ids=token_ids,
        num_new_tokens=len(token_ids),
        block_table=blocks,
        num_samples=1,
    )
    return pb.SequenceGroupMetadata(
        num_prompt_tokens=len(token_ids),
        sequences=[sequence],
        sampling_params=common_pb2.SamplingParams(top_p=1),
    )

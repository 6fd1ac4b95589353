"""What a peer sends is neither taken as a size nor put in a log whole: services as processes."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from signalbox_protos.scheduler.v1 import scheduler_pb2, scheduler_pb2_grpc
from signalbox_protos.worker.v1 import worker_pb2 as pb
from signalbox_protos.worker.v1 import worker_pb2_grpc
from signalbox_worker.service.servicer import WorkerServicer
from tests.chaos.services import Service, until_up
from tests.integration import stack
from tests.integration.stack import router, running_worker, simulated
from tests.ports import free_port
from tests.router.limits.router_process import entries, router_process
from tests.waiting import eventually

LONG = "x" * 5_000_000
MAX_LOG_BYTES = 100_000
EPOCH = 7

Spoil = Callable[[Any, scheduler_pb2.Join], None]


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[Service]:
    service = Service(("scheduler", "--log-level=debug"), free_port(), tmp_path / "log")
    service.start()
    try:
        await eventually(lambda: "listening on" in service.log.read_text())
        yield service
        written = service.log.read_text()
        assert len(written) < MAX_LOG_BYTES
        assert "Traceback" not in written
    finally:
        await service.kill()


class Announcing(worker_pb2_grpc.WorkerServiceServicer):
    """A worker that says of itself what a test wants."""

    def __init__(self, info: pb.GetWorkerInfoResponse) -> None:
        self._info = info

    async def GetWorkerInfo(self, request: object, context: object) -> pb.GetWorkerInfoResponse:
        return self._info


def make_info() -> pb.GetWorkerInfoResponse:
    info = pb.GetWorkerInfoResponse(epoch=EPOCH)
    info.model.name, info.model.architecture, info.model.dtype = "m", "a", "float32"
    info.model.vocab_size, info.model.max_model_len = 100, 1000
    capacity = info.capacity
    capacity.block_size, capacity.num_gpu_blocks, capacity.block_bytes = 16, 64, 1
    capacity.max_num_seqs, capacity.max_num_batched_tokens = 8, 64
    capacity.grammar_bytes = capacity.max_steps_in_flight = 1
    return info


def announcing(field: str, value: int) -> Spoil:
    return lambda info, _: setattr(info.capacity, field, value)


SPOILS: dict[str, Spoil] = {
    "blocks of 2^31 tokens": announcing("block_size", 1 << 31),
    "2^32 steps": announcing("max_steps_in_flight", (1 << 32) - 1),
    "2^32 stages": announcing("pipeline_parallel_size", (1 << 32) - 1),
    "2^32 tokens": lambda info, _: setattr(info.model, "vocab_size", (1 << 32) - 1),
    "a long name": lambda info, _: setattr(info.model, "name", LONG),
    "a long format": lambda info, _: setattr(info.capacity, "block_format", LONG),
    "many ends": lambda info, _: info.model.eos_token_ids.extend([1] * 1_000_000),
    "many ranks": lambda info, _: info.capacity.ranks.extend(
        [type(info.capacity.ranks.add())(host="h")] * 100_000
    ),
    "a long role": lambda _, join: setattr(join, "role", LONG),
    "a long address": lambda _, join: setattr(join, "address", LONG),
}


@contextlib.asynccontextmanager
async def worker_of(info: pb.GetWorkerInfoResponse) -> AsyncIterator[str]:
    """Serves one; yields where."""
    server = grpc.aio.server(options=[("grpc.max_send_message_length", -1)])
    worker_pb2_grpc.add_WorkerServiceServicer_to_server(Announcing(info), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"127.0.0.1:{port}"
    finally:
        await server.stop(None)


async def test_a_worker_that_announces_too_much_is_refused_in_a_line(scheduler: Service) -> None:
    options = [("grpc.max_send_message_length", -1)]
    at = f"127.0.0.1:{scheduler.port}"
    async with grpc.aio.insecure_channel(at, options=options) as channel:
        stub = scheduler_pb2_grpc.WorkerRegistryServiceStub(channel)
        for name, spoil in SPOILS.items():
            info = make_info()
            async with worker_of(info) as address:
                join = scheduler_pb2.Join(epoch=EPOCH, address=address)
                spoil(info, join)
                with pytest.raises(grpc.aio.AioRpcError) as refused:
                    async for _ in stub.Register(iter([scheduler_pb2.RegisterRequest(join=join)])):
                        pass
            expected = {grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT}
            assert refused.value.code() in expected, name
            assert 0 < len(refused.value.details() or "") <= 1024, name


async def test_a_workers_long_words_are_cut_wherever_they_go(
    scheduler: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Talkative(WorkerServicer):
        async def ExecuteModel(
            self, requests: Any, context: Any
        ) -> AsyncIterator[pb.ExecuteModelResponse]:
            async for answer in super().ExecuteModel(requests, context):
                seq_ids = {int(one) for one in memoryview(answer.seq_ids).cast("q")}
                for seq_id in seq_ids:
                    answer.errors.add(seq_id=seq_id, code=13, message=LONG)
                answer.seq_ids = answer.branches = answer.token_ids = answer.num_tokens = b""
                yield answer

    monkeypatch.setattr(stack, "WorkerServicer", Talkative)
    at = f"127.0.0.1:{scheduler.port}"
    async with running_worker(at, simulated()), router(at) as client:
        await until_up(at)
        await client.add(1, [1, 2, 3])
        await eventually(lambda: LONG[:100] in scheduler.log.read_text())


@pytest.mark.parametrize("method", ["Generate", "Tokenize", "GetModel"])
async def test_a_message_that_is_too_large_leaves_no_traceback(tmp_path: Path, method: str) -> None:
    async with router_process(tmp_path, entries("known"), "--log-level=debug") as process:
        options = [("grpc.max_send_message_length", -1)]
        at = f"127.0.0.1:{process.service.port}"
        async with grpc.aio.insecure_channel(at, options=options) as channel:
            call: Any = channel.unary_unary(f"/signalbox.inference.v1.InferenceService/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await call(LONG.encode(), metadata=[("authorization", "Bearer known")])
        assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert await process.knows("known")
        written = process.log.read_text()
        assert "Traceback" not in written
        assert len(written) < MAX_LOG_BYTES

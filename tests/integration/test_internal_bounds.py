"""What routers and workers say beyond any sense is bounded before it costs the scheduler much."""

from collections.abc import AsyncIterator

import pytest

from signalbox_contract import tokenizer_files
from signalbox_contract.model import MAX_BLOCKS, WorkerCapacity
from signalbox_protos.scheduler.v1 import state_pb2, stats_pb2
from signalbox_protos.worker.v1 import worker_pb2
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.service.servicer import WorkerServicer
from tests.integration import stack
from tests.integration.stack import router, running_scheduler, running_worker, simulated
from tests.waiting import eventually


async def test_a_request_as_old_as_can_be_said_breaks_no_statistics() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated(num_gpu_blocks=32)),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
        longest = (1 << 64) - 1
        await client.add(1, [1, 2, 3], age_ns=longest, timeout_ns=longest)
        (got,) = await client.ended(1)
        got.assert_served()
        stats = await client.stub.GetStats(stats_pb2.GetStatsRequest(max_live_requests=9))
        assert sum(stats.requests.queue_ns.counts) == 1
        await client.add(2, [1] * 9, age_ns=longest, timeout_ns=longest, max_tokens=200)
        async for _ in client.stub.DumpState(state_pb2.DumpStateRequest()):
            pass


def capacity(num_blocks: int) -> WorkerCapacity:
    return WorkerCapacity(
        block_size=16,
        num_gpu_blocks=num_blocks,
        num_cpu_blocks=0,
        block_bytes=1,
        max_num_seqs=1,
        max_num_batched_tokens=1,
        grammar_bytes=1,
    )


def test_a_worker_announces_at_most_so_many_blocks() -> None:
    capacity(MAX_BLOCKS).check()
    with pytest.raises(ValueError, match="a worker with 40000000 blocks has more than 4194304"):
        capacity(40_000_000).check()


async def test_a_tokenizer_that_does_not_end_is_given_up(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    num_sent = 0

    class Endless(WorkerServicer):
        async def GetTokenizer(
            self, request: object, context: object
        ) -> AsyncIterator[worker_pb2.GetTokenizerResponse]:
            nonlocal num_sent
            while num_sent < 1000:
                num_sent += 1
                yield worker_pb2.GetTokenizerResponse(file_name="a", chunk=bytes(1 << 16))

    monkeypatch.setattr(stack, "WorkerServicer", Endless)
    monkeypatch.setattr(tokenizer_files, "MAX_TOKENIZER_BYTES", 1 << 20)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated()),
    ):
        await eventually(lambda: "its tokenizer has more than 1 MiB" in caplog.text)
        assert num_sent < 1000

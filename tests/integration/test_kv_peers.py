"""Prefixes that another worker has, over real gRPC: right tokens whatever happens to workers."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from signalbox_contract.errors import Aborted
from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.kv.planned_copies import PlannedCopies
from signalbox_scheduler.transfers.block_exports import BlockExports
from signalbox_scheduler.transfers.peers import TransferPeer
from signalbox_worker.kv.peers import peer_client
from signalbox_worker.kv.store.transfer import ExportedBlocks
from tests.integration.stack import (
    Router,
    RunningScheduler,
    RunningWorker,
    assert_idle,
    assert_replays,
    count,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.integration.test_kv_store import PROMPT, ask, conversations
from tests.scheduler_svc.make import transfers
from tests.waiting import eventually

CONFIG = {
    "block_size": 8,
    "num_gpu_blocks": 80,
    "num_cpu_blocks": 64,
    "max_num_seqs": 1,
    "max_num_batched_tokens": 64,
    "step_ns": 1_000_000,
    "token_ns": 200_000,  # else to compute a prompt is as fast as to fetch it
}
BLOCK_BYTES = 8 * 8
LONG = 99
"""Handle of a request that keeps the first worker busy."""


pytestmark = pytest.mark.usefixtures("patient_moves")


@dataclass(frozen=True, slots=True)
class Pair:
    """A worker that has PROMPT and is busy, and one that has nothing."""

    scheduler: RunningScheduler
    client: Router
    first: RunningWorker
    second: RunningWorker

    @property
    def peers(self) -> list[TransferPeer]:
        """What the workers export and read, in the order in which they joined."""
        loops = self.scheduler.cluster.step_loops
        return [transfers(loop.scheduler).peer for loop in loops]


@contextlib.asynccontextmanager
async def pair(
    recording: str | None = None, *, other: dict[str, int] | None = None
) -> AsyncIterator[Pair]:
    async with (
        running_scheduler(SchedulerConfig(port=0, recording_path=recording)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, simulated(**CONFIG)) as first,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        assert await ask(client, 1, PROMPT) == 0
        await client.add(LONG, [7] * 20, max_tokens=500)
        await eventually(lambda: bool(loops[0].scheduler.running))
        second = simulated(**CONFIG | (other or {}))
        async with running_worker(scheduler.address, second) as running:
            await eventually(lambda: len(loops) == 2)
            yield Pair(scheduler, client, first, running)
            if not client.got[LONG].end:
                await client.abort(LONG)
            await assert_idle(scheduler)


async def test_a_prefix_comes_from_the_worker_that_has_it(tmp_path: Path) -> None:
    recording = tmp_path / "decisions"
    async with pair(str(recording)) as two:
        assert await ask(two.client, 2, PROMPT) == 64
        owner, reader = two.peers
        await eventually(lambda: owner.exports.num_bytes > 0)
        stub = two.client.stub
        first, second = (await stub.GetStats(stats_pb2.GetStatsRequest())).workers
        explanation = await stub.Explain(explain_pb2.ExplainRequest(request_id="r2"))
    for worker, direction in ((first, "out"), (second, "in")):
        assert count(worker.samples, "kv_store_bytes", direction=direction) == 8 * BLOCK_BYTES
    assert {one.labels["tier"] for one in second.samples if "tier" in one.labels} == {"peer"}
    assert owner.exports.num_bytes == reader.reads.counts.num_bytes == 8 * BLOCK_BYTES
    counts = reader.reads.counts
    assert (counts.num_queries, counts.num_hits, counts.num_failures) == (64, 64, 0)
    (event,) = (one for one in explanation.events if one.kind == explain_pb2.EVENT_KIND_FETCHED)
    assert (event.num_blocks, event.num_bytes) == (8, 8 * BLOCK_BYTES)
    assert event.source == first.address
    assert event.duration_ns > 0
    (scheduled,) = (one for one in explanation.events if one.waits)
    assert explain_pb2.WAIT_REASON_LOADING in [wait.reason for wait in scheduled.waits]
    assert_replays(recording)


async def test_what_a_worker_has_is_not_fetched() -> None:
    async with pair() as two:
        assert await ask(two.client, 2, PROMPT) == 64
        assert await ask(two.client, 3, PROMPT) == 64
        assert two.peers[1].reads.counts.num_bytes == 8 * BLOCK_BYTES


async def test_tenants_fetch_nothing_of_each_other() -> None:
    async with pair() as two:
        await two.client.add(2, PROMPT, tenant="other")
        (got,) = await two.client.ended(2)
        assert got.end is not None
        assert got.end.usage.cached_tokens == 0
        assert two.peers[1].reads.counts.num_queries == 0


@pytest.mark.parametrize("other", [{"block_size": 16}, {"num_cpu_blocks": 0}])
async def test_workers_whose_blocks_differ_compute(other: dict[str, int]) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, simulated(**CONFIG)),
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        assert await ask(client, 1, PROMPT) == 0
        await client.add(LONG, [7] * 20, max_tokens=500)
        await eventually(lambda: bool(loops[0].scheduler.running))
        async with running_worker(scheduler.address, simulated(**CONFIG | other)):
            await eventually(lambda: len(loops) == 2)
            assert await ask(client, 2, PROMPT) == 0
            await client.abort(LONG)


def cut_off(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    copy_out = ExportedBlocks.copy_out

    def shorter(exported: ExportedBlocks, index: int) -> bytearray | None:
        block = copy_out(exported, index)
        return block and block[:-1]

    monkeypatch.setattr(ExportedBlocks, "copy_out", shorter)


def forget_exports(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner is not told of the ticket."""
    monkeypatch.setattr(peer_client, "TOLD_S", 0.05)
    monkeypatch.setattr(BlockExports, "plan", lambda _, now: None)


def lose_blocks(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """The owner has evicted them when it is to export them."""
    monkeypatch.setattr(PlannedCopies, "store_copy", lambda blocks, block_hash, hold: False)


def refuse(two: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def aborted(exported: ExportedBlocks, index: int) -> bytearray:
        raise Aborted("no")

    monkeypatch.setattr(ExportedBlocks, "copy_out", aborted)


@pytest.mark.parametrize("harm", [cut_off, forget_exports, lose_blocks, refuse])
async def test_a_prefix_that_does_not_arrive_is_computed(
    harm: Callable[[Pair, pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with pair() as two:
        harm(two, monkeypatch)
        assert await ask(two.client, 2, PROMPT) == 0
        reader = two.peers[1]
        assert reader.reads.counts.num_queries == 64
        assert reader.reads.counts.num_hits == 0


@pytest.mark.parametrize("is_owner", [True, False])
async def test_a_worker_that_is_lost_while_blocks_move_costs_a_recompute(
    is_owner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other worker, or the one that is left, computes the prompt."""
    async with pair() as two:
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()
        copy_out = ExportedBlocks.copy_out

        def entering(exported: ExportedBlocks, index: int) -> bytearray | None:
            loop.call_soon_threadsafe(entered.set)
            return copy_out(exported, index) if index < 2 else None

        monkeypatch.setattr(ExportedBlocks, "copy_out", entering)
        await two.client.add(2, PROMPT)
        await entered.wait()
        lost = two.first if is_owner else two.second
        await lost.kill()
        await eventually(lambda: len(two.scheduler.cluster.step_loops) == 1)
        await two.client.abort(LONG)
        (got,) = await two.client.ended(2)
        got.assert_served()


async def test_a_request_that_is_aborted_while_it_loads_leaves_no_pin(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with pair() as two:
        monkeypatch.setattr(BlockExports, "plan", lambda _, now: None)
        await two.client.add(2, PROMPT)
        second = two.scheduler.cluster.step_loops[1].scheduler
        await eventually(lambda: bool(second.loading))
        await two.client.abort(2)
        await eventually(lambda: not second.loading)


@pytest.mark.parametrize("seed", [1, 2])
async def test_tokens_are_right_while_workers_come_and_go(seed: int, tmp_path: Path) -> None:
    recording = tmp_path / "decisions"
    config = SchedulerConfig(port=0, recording_path=str(recording))

    make_runner = simulated(**CONFIG | {"num_gpu_blocks": 40, "max_num_seqs": 3})
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, make_runner),
        running_worker(scheduler.address, make_runner),
        running_worker(scheduler.address, make_runner) as third,
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 3)
        peers = [transfers(loop.scheduler).peer for loop in scheduler.cluster.step_loops]
        killing: list[asyncio.Task[None]] = []
        await conversations(
            client, random.Random(seed), lambda: killing.append(asyncio.create_task(third.kill()))
        )
        await asyncio.gather(*killing)
        await assert_idle(scheduler)
    counts = [one.reads.counts for one in peers if one is not None]
    assert sum(one.num_hits for one in counts) > 0, "else this proves little"
    assert_replays(recording)

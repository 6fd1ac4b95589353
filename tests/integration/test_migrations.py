"""Workers that drain hand what runs on them over, via gRPC: right tokens, and no recompute."""

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_protos.scheduler.v1 import explain_pb2, stats_pb2
from signalbox_rpc.metrics.registry import make_registry
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.service.reports import metrics
from signalbox_scheduler.transfers.worker_migrations import WorkerMigrations
from signalbox_scheduler.workers.cluster import Cluster
from tests.integration.insight.test_metrics import value
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
from tests.integration.test_kv_store import conversations
from tests.scheduler_svc.make import transfers
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

CONFIG = {
    "block_size": 8,
    "num_gpu_blocks": 1000,
    "num_cpu_blocks": 200,
    "max_num_batched_tokens": 64,
    "step_ns": 2_000_000,
    "token_ns": 50_000,
}
NUM_STREAMS, NUM_TOKENS = 8, 300
WINDOW = CacheGroup(kind="window", window=40)


pytestmark = pytest.mark.usefixtures("patient_moves")


def of(cluster: Cluster, number: int) -> WorkerMigrations:
    return transfers(cluster.step_loops[number].scheduler).migrations


def prompt_of(handle: int) -> list[int]:
    return [100 + handle] * (20 + 3 * handle)


@dataclass(frozen=True, slots=True)
class Streams:
    """Requests that run on a worker beside which another has joined."""

    scheduler: RunningScheduler
    client: Router
    first: RunningWorker
    second: RunningWorker
    groups: tuple[CacheGroup, ...]

    async def assert_right(self) -> None:
        for handle, got in enumerate(await self.client.ended(*range(NUM_STREAMS))):
            got.assert_served()
            for branch, tokens in got.tokens.items():
                assert tokens == expected_tokens(
                    prompt_of(handle),
                    num_tokens=NUM_TOKENS,
                    branch=branch,
                    windows=[group.window for group in self.groups],
                )


@contextlib.asynccontextmanager
async def streams(
    recording: str | None = None,
    *,
    token_ns: int = CONFIG["token_ns"],
    groups: tuple[CacheGroup, ...] = (FULL_GROUP,),
    **request: object,
) -> AsyncIterator[Streams]:
    make_runner = simulated(**CONFIG | {"token_ns": token_ns, "groups": groups})
    async with (
        running_scheduler(SchedulerConfig(port=0, recording_path=recording)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, make_runner) as first,
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        for handle in range(NUM_STREAMS):
            await client.add(handle, prompt_of(handle), max_tokens=NUM_TOKENS, **request)
        await eventually(lambda: all(got.tokens for got in client.got.values()))
        async with running_worker(scheduler.address, make_runner) as second:
            await eventually(lambda: len(loops) == 2)
            yield Streams(scheduler, client, first, second, groups)
            await assert_idle(scheduler)


@pytest.mark.parametrize(
    ("num_sequences", "groups"),
    [(1, (FULL_GROUP,)), (2, (FULL_GROUP,)), (2, (FULL_GROUP, WINDOW))],
)
async def test_a_worker_that_drains_hands_its_streams_over(
    num_sequences: int, groups: tuple[CacheGroup, ...], tmp_path: Path
) -> None:
    recording = tmp_path / "decisions"
    async with streams(str(recording), groups=groups, num_sequences=num_sequences) as running:
        cluster, source = running.scheduler.cluster, of(running.scheduler.cluster, 0)
        await running.first.registration.drain(timeout_s=60)
        await eventually(lambda: len(cluster.step_loops) == 1)
        assert source.num_out == of(cluster, 0).num_in == NUM_STREAMS
        registry = make_registry(lambda: metrics.samples(cluster))
        assert value(registry, "signalbox_migrations_total", result="in") == NUM_STREAMS
        assert value(registry, "signalbox_migration_pause_seconds_count") == NUM_STREAMS
        assert value(registry, "signalbox_migration_bytes_total") == of(cluster, 0).num_bytes > 0
        await running.assert_right()
        scheduler = cluster.step_loops[0].scheduler
        assert scheduler.output_processor.num_prompt_tokens == 0, "a prompt was computed again"
        assert scheduler.planner.num_prefix_queries == 0
        request = explain_pb2.ExplainRequest(request_id="r3")
        explained = await running.client.stub.Explain(request)
        assert count(explained.samples, "num_migrations") == 1
        (event,) = (one for one in explained.events if one.kind == explain_pb2.EVENT_KIND_MIGRATED)
        assert event.worker == scheduler.worker_name
        assert event.num_bytes == 64 * event.num_blocks > 0
        (known,) = (await running.client.stub.GetStats(stats_pb2.GetStatsRequest())).workers
        assert count(known.samples, "migrations", result="in") == NUM_STREAMS
        assert count(known.samples, "migration_pause_seconds") == NUM_STREAMS
        assert count(known.samples, "migration_bytes") == of(cluster, 0).num_bytes
    assert_replays(recording)


async def test_a_taker_that_dies_leaves_the_streams_where_they_are() -> None:
    async with streams() as running:
        cluster, source = running.scheduler.cluster, of(running.scheduler.cluster, 0)
        running.scheduler.cluster.step_loops[0].scheduler.drain()
        await eventually(lambda: bool(source.outgoing))
        async with running_worker(running.scheduler.address, simulated(**CONFIG)):
            await eventually(lambda: len(cluster.step_loops) == 3)
            await running.second.kill()
            await running.assert_right()


async def test_a_worker_that_joins_under_load_takes_streams_over(tmp_path: Path) -> None:
    """Steps take time for each sequence, so that each worker is faster with half of them."""
    recording = tmp_path / "decisions"
    async with streams(str(recording), token_ns=1_000_000) as running:
        cluster = running.scheduler.cluster
        await eventually(lambda: of(cluster, 1).num_in > 1)
        await running.assert_right()
        planners = [loop.scheduler.planner for loop in cluster.step_loops]
        assert planners[1].num_prefix_queries == 0, "nothing is computed again"
        assert of(cluster, 0).num_out >= of(cluster, 1).num_in > 1
    assert_replays(recording)


@pytest.mark.parametrize("seed", [1, 2])
async def test_tokens_are_right_while_workers_drain_and_come(seed: int, tmp_path: Path) -> None:
    recording = tmp_path / "decisions"
    config = SchedulerConfig(port=0, recording_path=str(recording))
    make_runner = simulated(**CONFIG | {"num_gpu_blocks": 60, "num_cpu_blocks": 40})
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, make_runner) as first,
        running_worker(scheduler.address, make_runner),
        running_worker(scheduler.address, make_runner),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 3)
        draining: list[asyncio.Task[None]] = []

        def drain() -> None:
            draining.append(asyncio.create_task(first.registration.drain(timeout_s=60)))

        await conversations(client, random.Random(seed), drain)
        await asyncio.gather(*draining)
        await assert_idle(scheduler)
    assert_replays(recording)

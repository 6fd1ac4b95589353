"""Prefixes from a worker's store, over real gRPC: right tokens whatever the store does."""

import asyncio
import itertools
import random
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from signalbox_contract.cache_groups import FULL_GROUP, CacheGroup
from signalbox_contract.model import WorkerCapacity
from signalbox_contract.sections.store_moves import ClearMark
from signalbox_protos.scheduler.v1 import explain_pb2, scheduler_pb2, stats_pb2
from signalbox_scheduler.config import SchedulerConfig
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_worker.kv.disk.disk_tier import DiskTier
from signalbox_worker.kv.store.block_store import BlockStore, StoreError, StoreUsage
from signalbox_worker.kv.store.memory_store import MemoryStore
from signalbox_worker.kv.store_config import DiskConfig
from signalbox_worker.runner.simulated.simulated_config import SimulatedConfig
from signalbox_worker.runner.simulated.simulated_runner import SimulatedRunner
from signalbox_worker.service.registration_client import RegistrationRefused
from tests.gpu_worker.kv.disk import disks
from tests.gpu_worker.kv.store.stores import key_of
from tests.integration.stack import (
    Router,
    RunningScheduler,
    assert_idle,
    assert_replays,
    count,
    router,
    running_scheduler,
    running_worker,
)
from tests.simulated_model import expected_tokens
from tests.waiting import eventually

CONFIG = SimulatedConfig(
    block_size=8,
    num_gpu_blocks=40,
    num_cpu_blocks=32,
    max_num_batched_tokens=64,
    token_ns=200_000,  # so that to fetch a prefix pays
)
PROMPT = list(range(100, 165))  # eight blocks and a token
NUM_REQUESTS, NUM_TOPICS = 60, 8


def make_store(num_blocks: int = 1000) -> MemoryStore:
    return MemoryStore(block_bytes=8 * CONFIG.block_size, num_blocks=num_blocks)


class FaultyStore:
    """Loses blocks, fails and dawdles every few calls; what it returns is what was written."""

    def __init__(self, store: BlockStore, *, seed: int) -> None:
        self._store = store
        self._calls = itertools.count(seed)
        self.is_faulty = True
        self.num_faults = 0

    @property
    def block_bytes(self) -> int:
        return self._store.block_bytes

    def _dawdle(self) -> int:
        """Takes a while, now and then; returns the number of the call."""
        call = next(self._calls)
        if self.is_faulty and call % 11 == 7:
            time.sleep(0.4 if call % 7 == 3 else 0.005)
        return call

    def _loses(self) -> bool:
        """Raises now and then; else returns whether a block is lost."""
        call = self._dawdle()
        if self.is_faulty and call % 9 == 4:
            self.num_faults += 1
            raise StoreError("input/output error")
        return self.is_faulty and call % 13 == 2

    def find(self, keys: Sequence[bytes]) -> int:
        return 0 if self._loses() else self._store.find(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        if self._loses():
            into[:] = bytes(len(into))  # as a store may that finds out afterwards
            return False
        return self._store.read(key, into)

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        self._dawdle()  # after one that failed, nothing would be written for a while
        return self._store.write(key, data, tenant)

    @property
    def is_open(self) -> bool:
        return True

    def remove(self, key: bytes) -> None:
        self._store.remove(key)

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        self._store.clear(tenant, mark)

    def usage(self) -> StoreUsage:
        return self._store.usage()

    def close(self) -> None:
        self._store.close()


def with_store(
    store: BlockStore, groups: tuple[CacheGroup, ...] = (FULL_GROUP,)
) -> Callable[[], SimulatedRunner]:
    return lambda: SimulatedRunner(replace(CONFIG, groups=groups), store=store)


async def ask(
    client: Router, handle: int, prompt: list[int], *, windows: Sequence[int] = (0,)
) -> int:
    """Returns how many tokens of a prompt were cached; its answer is right."""
    await client.add(handle, prompt)
    (got,) = await client.ended(handle)
    got.assert_served()
    assert got.tokens[0] == expected_tokens(prompt, num_tokens=16, windows=windows)
    return got.end.usage.cached_tokens


async def test_a_worker_that_starts_again_finds_its_prefixes_in_the_store() -> None:
    store = make_store()
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        async with running_worker(scheduler.address, with_store(store)):
            await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
            assert await ask(client, 1, PROMPT) == 0
            assert store.usage().num_blocks == 0
            assert await ask(client, 2, PROMPT) == 64
            await assert_idle(scheduler)
            assert store.usage().num_blocks == 10, "those of the prompt, and of the answer"
        await eventually(lambda: not scheduler.cluster.step_loops)
        async with running_worker(scheduler.address, with_store(store)):
            await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
            assert await ask(client, 3, PROMPT) == 64
            await assert_idle(scheduler)
            (worker,) = (await client.stub.GetStats(stats_pb2.GetStatsRequest())).workers
            explanation = await client.stub.Explain(explain_pb2.ExplainRequest(request_id="r3"))
    for name in ("kv_store_queries", "kv_store_hits"):
        assert count(worker.samples, name, tier="memory") == 64
    assert count(worker.samples, "kv_store_bytes", direction="in") == 8 * store.block_bytes
    (event,) = (one for one in explanation.events if one.kind == explain_pb2.EVENT_KIND_FETCHED)
    assert (event.num_blocks, event.num_bytes) == (8, 8 * store.block_bytes)


async def test_a_worker_with_windows_fetches_what_they_see(tmp_path: Path) -> None:
    store, groups = make_store(), (FULL_GROUP, CacheGroup(kind="window", window=20))
    asked = partial(ask, windows=[group.window for group in groups])
    recording = tmp_path / "decisions"
    async with (
        running_scheduler(SchedulerConfig(port=0, recording_path=str(recording))) as scheduler,
        router(scheduler.address) as client,
    ):
        async with running_worker(scheduler.address, with_store(store, groups)):
            await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
            assert await asked(client, 1, PROMPT) == 0
            assert await asked(client, 2, PROMPT) == 64
            await assert_idle(scheduler)
            assert store.usage().num_blocks == 2 * 10
        await eventually(lambda: not scheduler.cluster.step_loops)
        async with running_worker(scheduler.address, with_store(store, groups)):
            await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
            assert await asked(client, 3, PROMPT) == 64
            await assert_idle(scheduler)
            (worker,) = (await client.stub.GetStats(stats_pb2.GetStatsRequest())).workers
    for name in ("kv_store_queries", "kv_store_hits"):
        assert count(worker.samples, name, tier="memory") == 64
    # The next token sees 20 positions, in three blocks.
    assert count(worker.samples, "kv_store_bytes", direction="in") == (8 + 3) * store.block_bytes
    assert_replays(recording)


@pytest.mark.parametrize("setting", ["prefix_caching", "cpu_prefix_cache"])
async def test_a_store_that_the_scheduler_would_not_use_is_refused(setting: str) -> None:
    """It would not be cleared either, by a clear that says that it was."""
    config = SchedulerConfig(port=0).model_copy(update={setting: False})
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, with_store(make_store())) as worker,
    ):
        with pytest.raises(RegistrationRefused, match=f"turn .*{setting}"):
            await worker.task


async def test_a_store_with_too_little_swap_space_to_move_blocks_is_refused() -> None:
    config = replace(CONFIG, num_cpu_blocks=3)
    runner = partial(SimulatedRunner, config, store=make_store())
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, runner) as worker,
    ):
        with pytest.raises(RegistrationRefused, match=r"swap space of 3 blocks.*--swap-space"):
            await worker.task


@pytest.mark.parametrize("tenant", [None, "", "another"])
async def test_a_clear_of_the_service_reaches_memory_and_stores(
    tmp_path: Path, tenant: str | None
) -> None:
    stores = [make_store(), make_store()]
    recording = tmp_path / "decisions"
    async with (
        running_scheduler(SchedulerConfig(port=0, recording_path=str(recording))) as scheduler,
        running_worker(scheduler.address, with_store(stores[0])),
        running_worker(scheduler.address, with_store(stores[1])),
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        handles = itertools.count(1)
        for _ in range(2):  # at once, so that both workers have some
            begun = list(itertools.islice(handles, 24))
            for handle in begun:
                await client.add(handle, [handle % 6, *PROMPT])
            await client.ended(*begun)
        await assert_idle(scheduler)
        assert all(store.usage().num_blocks for store in stores)
        running = next(handles)
        await client.add(running, [*PROMPT, 7], max_tokens=400)
        request = scheduler_pb2.ClearCacheRequest(tenant=tenant)
        cleared = await client.stub.ClearCache(request)
        assert [one.fault for one in cleared.workers] == ["", ""]
        assert not any(store.usage().num_blocks for store in stores) or tenant == "another"
        await client.abort(running)
        cached = await ask(client, next(handles), [3, *PROMPT])
        assert cached == 0 or tenant == "another"
        await assert_idle(scheduler)
    assert_replays(recording)


class DiskRunner(SimulatedRunner):
    """Has its store on a disk."""

    def __init__(self, tier: DiskTier) -> None:
        super().__init__(CONFIG, store=tier)
        self._tier = tier

    def profile(self) -> WorkerCapacity:
        return replace(super().profile(), store=self._tier.capacity)


@asynccontextmanager
async def opened_tier(path: Path) -> AsyncIterator[DiskTier]:
    tier = DiskTier(
        DiskConfig(kv_disk=path / "kv", kv_disk_space=0.25),
        block_bytes=8 * CONFIG.block_size,
        model="simulated",
    )
    tier.start(lambda *_: disks.IDENTITY)
    try:
        assert await asyncio.to_thread(tier.opened.wait, 60)
        yield tier
    finally:
        await asyncio.to_thread(tier.close)


@asynccontextmanager
async def worker_with_disk(scheduler: RunningScheduler, path: Path) -> AsyncIterator[DiskTier]:
    loops = scheduler.cluster.step_loops
    others = list(loops)
    async with opened_tier(path) as tier:
        async with running_worker(scheduler.address, lambda: DiskRunner(tier)):
            await eventually(lambda: len(loops) == len(others) + 1)
            await assert_idle(scheduler)  # nothing is looked up during a clear
            yield tier
            await assert_idle(scheduler)
        await eventually(lambda: loops == others)


@pytest.mark.parametrize("tenant", [None, ""])
async def test_files_of_a_worker_that_was_away_are_cleared_once_when_it_is_back(
    tmp_path: Path, tenant: str | None
) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        async with worker_with_disk(scheduler, tmp_path):
            assert await ask(client, 1, PROMPT) == 0
            assert await ask(client, 2, PROMPT) == 64
        async with worker_with_disk(scheduler, tmp_path):
            assert await ask(client, 3, PROMPT) == 64
        request = scheduler_pb2.ClearCacheRequest(tenant=tenant)
        assert not (await client.stub.ClearCache(request)).workers
        async with worker_with_disk(scheduler, tmp_path) as store:
            assert await ask(client, 4, PROMPT) == 0
            assert await ask(client, 5, PROMPT) == 64
            await assert_idle(scheduler)
            assert store.usage().num_blocks == 10, "those of the prompt, and of the answer"
        async with worker_with_disk(scheduler, tmp_path):
            assert await ask(client, 6, PROMPT) == 64


async def test_a_scheduler_that_starts_again_learns_clears_from_workers(tmp_path: Path) -> None:
    here, away = tmp_path / "here", tmp_path / "away"
    here.mkdir()
    away.mkdir()
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        async with worker_with_disk(scheduler, away):
            assert await ask(client, 1, PROMPT) == 0
            assert await ask(client, 2, PROMPT) == 64
        async with worker_with_disk(scheduler, here):
            (fault,) = (await client.stub.ClearCache(scheduler_pb2.ClearCacheRequest())).workers
            assert not fault.fault
    recording = tmp_path / "decisions"
    for is_cleared in (True, False):
        async with (
            running_scheduler(SchedulerConfig(port=0, recording_path=str(recording))) as scheduler,
            worker_with_disk(scheduler, here),
            worker_with_disk(scheduler, away) as tier,
        ):
            assert tier.usage().num_blocks == (0 if is_cleared else 1)
            assert tier.write(key_of(1), memoryview(bytes(tier.block_bytes)), b"")
        replay = Replay(str(recording), checks=True)
        assert replay.run() is None


async def conversations(client: Router, rng: random.Random, kill: Callable[[], None]) -> None:
    """Turns of a few conversations, many at once; some are aborted, and a worker dies half-way."""
    aborted, prompts = set(), {}
    for handle in range(NUM_REQUESTS):
        prompts[handle] = [rng.randrange(NUM_TOPICS)] * rng.choice([17, 41, 65, 90])
        await client.add(handle, prompts[handle], max_tokens=rng.randrange(2, 20))
        if rng.random() < 0.15:
            aborted.add(other := rng.randrange(handle + 1))
            await client.abort(other)
        if handle == NUM_REQUESTS // 2:
            kill()
        await asyncio.sleep(rng.choice([0, 0.001, 0.01]))
    for handle, got in zip(
        whole := sorted(set(prompts) - aborted), await client.ended(*whole), strict=True
    ):
        got.assert_served()
        tokens = got.tokens[0]
        assert tokens == expected_tokens(prompts[handle], num_tokens=len(tokens))


@pytest.mark.parametrize("seed", [1, 2])
async def test_tokens_are_right_whatever_the_store_does(seed: int, tmp_path: Path) -> None:
    store = FaultyStore(make_store(), seed=seed)
    recording = tmp_path / "decisions"
    config = SchedulerConfig(port=0, recording_path=str(recording), max_num_seqs=8)
    async with (
        running_scheduler(config) as scheduler,
        running_worker(scheduler.address, with_store(store)) as first,
        running_worker(scheduler.address, with_store(store)) as second,
        router(scheduler.address) as client,
    ):
        await eventually(lambda: len(scheduler.cluster.step_loops) == 2)
        killing: list[asyncio.Task[None]] = []
        await conversations(
            client,
            random.Random(seed),
            lambda: killing.append(asyncio.create_task(second.kill())),
        )
        await asyncio.gather(*killing)
        await assert_idle(scheduler)
        await first.kill()
        await eventually(lambda: not scheduler.cluster.step_loops)
        store.is_faulty = False  # what it has kept meanwhile is whole
        async with running_worker(scheduler.address, with_store(store)):
            await eventually(lambda: len(scheduler.cluster.step_loops) == 1)
            topics = range(NUM_TOPICS)
            cached = [await ask(client, 100 + topic, [topic] * 90) for topic in topics]
            await assert_idle(scheduler)
            (worker,) = (await client.stub.GetStats(stats_pb2.GetStatsRequest())).workers
    assert store.num_faults > 0, "else this proves little"
    assert sum(cached) > 0, f"{store.usage()}, {worker.store}"
    assert_replays(recording)

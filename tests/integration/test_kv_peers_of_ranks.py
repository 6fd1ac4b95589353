"""Workers whose ranks are processes exchange blocks: right tokens, whatever happens to a rank."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from signalbox_contract.worker_role import WorkerRole
from signalbox_scheduler.config import Disaggregation, SchedulerConfig
from signalbox_scheduler.transfers.transfer_connector import TransferConnector
from signalbox_scheduler.workers.engine.scheduler import Scheduler
from signalbox_worker.config import CacheConfig, DeviceConfig, ModelConfig
from signalbox_worker.device.parallel_config import ParallelConfig
from signalbox_worker.runner.loading.runner_config import RunnerConfig
from signalbox_worker.runner.ranks.rank_blocks import BlockCopies
from signalbox_worker.runner.ranks.ranked_runner import RankedRunner
from signalbox_worker.runner.runner import Runner
from signalbox_worker.service.registration_client import RegistrationRefused
from signalbox_worker.service.runner_factory import make_runner
from tests.gpu_worker.tiny_models import make_llama
from tests.integration.stack import (
    Router,
    RunningScheduler,
    RunningWorker,
    assert_idle,
    router,
    running_scheduler,
    running_worker,
)
from tests.scheduler_svc.make import transfers
from tests.waiting import eventually

pytestmark = [pytest.mark.system, pytest.mark.usefixtures("patient_moves", "loading_pays")]

PROMPT = list(range(3, 64)) * 3
NUM_BLOCKS = (len(PROMPT) - 1) // 16


def loading(
    model: Path, tp: int = 2, pp: int = 1, *, max_model_len: int = 250
) -> Callable[[], Runner]:
    return lambda: make_runner(
        RunnerConfig(
            model=ModelConfig(model=str(model), max_model_len=max_model_len),
            cache=CacheConfig(kv_cache_memory=0.05, swap_space=0.05),
            device=DeviceConfig(device="cpu", cpu_backend="native", num_threads=1),
            parallel=ParallelConfig(tensor_parallel_size=tp, pipeline_parallel_size=pp),
        )
    )


@dataclass(slots=True)
class Pair:
    """A worker that has computed the prompt, and one that has not and gets the next requests."""

    scheduler: RunningScheduler
    client: Router
    workers: tuple[RunningWorker, RunningWorker]
    expected: list[int]
    steering: pytest.MonkeyPatch
    """Keeps requests from the first worker."""

    @property
    def reader(self) -> Scheduler:
        return self.scheduler.cluster.step_loops[1].scheduler

    async def ask(self, handle: int) -> tuple[list[int], int]:
        return await ask(self.client, handle)


async def ask(client: Router, handle: int, *, max_tokens: int = 8) -> tuple[list[int], int]:
    """Returns the tokens of an answer, and how many of the prompt were cached."""
    await client.add(handle, PROMPT, max_tokens=max_tokens)
    (got,) = await client.ended(handle)
    got.assert_served()
    return got.tokens[0], got.end.usage.cached_tokens


@asynccontextmanager
async def pair(owner: Callable[[], Runner], reader: Callable[[], Runner]) -> AsyncIterator[Pair]:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, owner) as first,
    ):
        steering = pytest.MonkeyPatch()
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        expected, _ = await ask(client, 1)
        steering.setattr(loops[0].scheduler.state.selection, "next_group", lambda: None)
        async with running_worker(scheduler.address, reader) as second:
            await eventually(lambda: len(loops) == 2)
            if isinstance(connector := loops[0].scheduler.state.connector, TransferConnector):
                steering.setattr(connector.peer.reads, "find", lambda *_: None)
            yield Pair(scheduler, client, (first, second), expected, steering)
            await assert_idle(scheduler)


@pytest.mark.parametrize(("tp", "pp"), [(2, 1), (1, 2)])
async def test_a_prefix_comes_from_a_worker_with_ranks_of_the_same_sizes(
    model: Path, tp: int, pp: int
) -> None:
    load = loading(model, tp, pp)
    async with pair(load, load) as two:
        assert await two.ask(2) == (two.expected, NUM_BLOCKS * 16)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 2)])
async def test_a_worker_of_other_sizes_reads_nothing(model: Path, sizes: tuple[int, int]) -> None:
    async with pair(loading(model), loading(model, *sizes)) as two:
        _, num_cached = await two.ask(2)
        assert num_cached == 0
        assert not isinstance(two.reader.state.connector, TransferConnector)


@pytest.mark.parametrize("is_owner", [True, False])
async def test_a_rank_that_is_killed_while_blocks_move_costs_a_recompute(
    model: Path, is_owner: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ranks of the other worker, or of the one that is left, compute the prompt."""
    load = loading(model)
    async with pair(load, load) as two:
        runner = two.workers[0 if is_owner else 1].worker._runner
        assert isinstance(runner, RankedRunner)
        entered = asyncio.Event()
        loop = asyncio.get_running_loop()
        copies, copy = runner._others.copies, BlockCopies._copy
        num_copied = 0

        def copy_or_kill(self: BlockCopies, commands: list[object]) -> list[bytes] | None:
            nonlocal num_copied
            num_copied += self is copies
            if self is copies and num_copied == 3:
                os.kill(runner.follower_pids[0], signal.SIGKILL)
                loop.call_soon_threadsafe(entered.set)
            return copy(self, commands)  # type: ignore[arg-type]

        monkeypatch.setattr(BlockCopies, "_copy", copy_or_kill)
        await two.client.add(2, PROMPT, max_tokens=8)
        await entered.wait()
        two.steering.undo()
        (got,) = await two.client.ended(2)
        got.assert_served()
        assert got.tokens[0] == two.expected


async def test_a_prompt_of_one_worker_is_decoded_by_another_of_the_same_sizes_only(
    tmp_path: Path,
) -> None:
    """The stream runs until it has been migrated, however long that takes."""
    make_llama(tmp_path, max_position_embeddings=8192)
    config = SchedulerConfig(port=0, disaggregation=Disaggregation.STATIC)
    load = loading(tmp_path, max_model_len=8192)
    async with (
        running_scheduler(config) as scheduler,
        router(scheduler.address) as client,
        running_worker(scheduler.address, load, role=WorkerRole.PREFILL),
    ):
        loops = scheduler.cluster.step_loops
        await eventually(lambda: len(loops) == 1)
        other = loading(tmp_path, tp=1, pp=2, max_model_len=8192)
        async with running_worker(scheduler.address, other, role=WorkerRole.DECODE) as refused:
            with pytest.raises(
                RegistrationRefused, match="tensor-parallel size and pipeline-parallel size"
            ):
                await refused.task
        async with running_worker(scheduler.address, load, role=WorkerRole.DECODE):
            await eventually(lambda: len(loops) == 2)
            migrations = transfers(loops[1].scheduler).migrations
            await client.add(1, PROMPT, max_tokens=8000)
            await eventually(lambda: migrations.num_in == 1)
            num_before = len(tokens_of(client, 1))
            await eventually(lambda: len(tokens_of(client, 1)) >= num_before + 16)
            await client.abort(1)
            await assert_idle(scheduler)
        await eventually(lambda: len(loops) == 1)
        tokens = tokens_of(client, 1)
        expected, _ = await ask(client, 2, max_tokens=len(tokens))
        assert tokens == expected


def tokens_of(client: Router, handle: int) -> list[int]:
    return client.got[handle].tokens.get(0, [])

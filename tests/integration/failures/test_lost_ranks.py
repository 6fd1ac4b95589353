"""Ranks of a worker, as processes, that are killed, stopped or cut off cost no request."""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import psutil
import pytest

from signalbox_scheduler.config import SchedulerConfig
from tests.integration.stack import (
    Router,
    RunningScheduler,
    assert_idle,
    router,
    running_scheduler,
    until_workers,
)
from tests.signalbox.stacks import COMMAND, of_service, signalbox
from tests.waiting import EVENT_S, eventually

pytestmark = pytest.mark.system

NUM_REQUESTS = 6
FLAGS = (
    *("--device=cpu", "--dtype=float32", "--cpu-backend=native", "--num-threads=1"),
    *("--kv-cache-memory=0.002", "--swap-space=0.001", "--max-num-seqs=4"),
    *("--max-num-batched-tokens=64", "--drain-timeout=0"),
)


STAGES, RANKS_OF_A_STAGE = "--pipeline-parallel-size=3", "--tensor-parallel-size=2"
NAMES = {"pipeline": "stages", "tensor": "tensor-parallel ranks"}


class RankedWorker:
    """A `signalbox worker` of several ranks, and everything that it leaves."""

    def __init__(self, model: Path, scheduler: str, folder: Path, sizes: str) -> None:
        self.folder, self._num_ranks = folder, int(sizes[-1])
        folder.mkdir()
        self.log = folder / "log"
        with self.log.open("wb") as sink:
            self.process = psutil.Popen(
                [
                    *COMMAND,
                    "worker",
                    str(model),
                    sizes,
                    *FLAGS,
                    f"--scheduler={scheduler}",
                ],
                env=of_service() | {"TMPDIR": str(folder)},
                stderr=sink,
            )
        self.ranks: list[psutil.Process] = []

    def find_ranks(self) -> None:
        self.ranks = [
            one for one in self.process.children() if "follower_process" in str(one.cmdline())
        ]
        self.ranks.sort(key=lambda one: int(one.cmdline()[-2]))
        assert len(self.ranks) == self._num_ranks - 1

    async def until_gone(self) -> int:
        """Returns the status of rank 0, when all ranks have ended, and have left nothing."""
        status = await asyncio.to_thread(self.process.wait, EVENT_S)
        await eventually(lambda: not any(has_ended(one) is False for one in self.ranks))
        assert [path.name for path in self.folder.iterdir()] == ["log"]
        return int(status)


def has_ended(process: psutil.Process) -> bool:
    try:
        return bool(process.status() == psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return True


@contextlib.asynccontextmanager
async def ranked_worker(
    scheduler: RunningScheduler, model: Path, folder: Path, sizes: str
) -> AsyncIterator[RankedWorker]:
    worker = RankedWorker(model, scheduler.address, folder, sizes)
    try:
        yield worker
    finally:
        with contextlib.suppress(psutil.NoSuchProcess):
            for one in worker.process.children(recursive=True):
                one.kill()
            worker.process.kill()
        worker.process.wait()


async def add_requests(client: Router, first: int) -> None:
    for index in range(NUM_REQUESTS):
        prompt = [5 + (index * 7 + i) % 80 for i in range(20 + index)]
        await client.add(first + index, prompt, max_tokens=120)


def tokens_of(client: Router, first: int) -> list[dict[int, list[int]]]:
    return [client.got[first + index].tokens for index in range(NUM_REQUESTS)]


def names_of_workers(scheduler: RunningScheduler) -> list[str]:
    return [one.worker_name for one in scheduler.cluster.step_loops]


def kill(worker: RankedWorker) -> None:
    worker.ranks[0].kill()


def stop(worker: RankedWorker) -> None:
    worker.ranks[-1].suspend()


@pytest.mark.parametrize(
    ("sizes", "harm", "reason"),
    [
        (STAGES, kill, "rank 1 was killed by SIGKILL"),
        (STAGES, stop, "rank 2 no longer answers"),
        (RANKS_OF_A_STAGE, kill, "rank 1 was killed by SIGKILL"),
        (RANKS_OF_A_STAGE, stop, "rank 1 no longer answers"),
    ],
)
async def test_a_rank_that_is_lost_costs_no_request(
    sizes: str, harm: Callable[[RankedWorker], None], reason: str, model: Path, tmp_path: Path
) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0, worker_wait=120)) as scheduler,
        ranked_worker(scheduler, model, tmp_path / "first", sizes) as worker,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        (address,) = names_of_workers(scheduler)
        told = await asyncio.to_thread(signalbox, "health", "--address", address)
        kind, _, number = sizes.removeprefix("--").partition("-parallel-size=")
        assert f"on {number} {NAMES[kind]}" in told.stdout
        worker.find_ranks()
        await add_requests(client, 0)
        await client.ended(*range(NUM_REQUESTS))
        await add_requests(client, 100)
        await eventually(
            lambda: all(len(one.get(0, ())) > 20 for one in tokens_of(client, 100)[:2])
        )
        harm(worker)
        async with ranked_worker(scheduler, model, tmp_path / "second", sizes) as second:
            assert await worker.until_gone() == 1
            assert f"{reason}; the worker exits" in worker.log.read_text()
            await client.ended(*range(100, 100 + NUM_REQUESTS))
            assert tokens_of(client, 100) == tokens_of(client, 0)
            await assert_idle(scheduler)
            # It may not have been needed, where all had ended before the harm was done.
            await eventually(lambda: address not in names_of_workers(scheduler))
            await until_workers(scheduler, 1)
            second.find_ranks()
            second.process.send_signal(signal.SIGTERM)
            assert await second.until_gone() == 0, second.log.read_text()

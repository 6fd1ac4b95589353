"""torchrun starts the ranks of a worker, and starts all of them again when one is lost."""

import asyncio
import sys
from pathlib import Path

import psutil
import pytest

from signalbox_scheduler.config import SchedulerConfig
from tests.gpu_worker.tiny_models import make_llama
from tests.integration.failures.test_lost_ranks import (
    NUM_REQUESTS,
    add_requests,
    has_ended,
    tokens_of,
)
from tests.integration.placement.ranks import MODEL_FLAGS
from tests.integration.stack import assert_idle, router, running_scheduler, until_workers
from tests.ports import free_port
from tests.signalbox.stacks import environment
from tests.waiting import EVENT_S, eventually

pytestmark = pytest.mark.system


def torchrun(model: Path, scheduler: str, log: Path) -> psutil.Popen:
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"),
        *("--max-restarts=1", "--monitor-interval=0.1", "-m", "signalbox", "worker", str(model)),
        *("--placement=environment", "--pipeline-parallel-size=3", f"--rank-port={free_port()}"),
        *(f"--scheduler={scheduler}", "--drain-timeout=0", *MODEL_FLAGS),
    ]
    with log.open("wb") as sink:
        return psutil.Popen(command, env=environment(), stdout=sink, stderr=sink)


async def test_torchrun_starts_all_ranks_again_and_requests_go_on(tmp_path: Path) -> None:
    make_llama(tmp_path)
    log = tmp_path / "log"
    async with running_scheduler(SchedulerConfig(port=0, worker_wait=120)) as scheduler:
        process = torchrun(tmp_path, scheduler.address, log)
        try:
            await until_workers(scheduler, 1)
            async with router(scheduler.address) as client:
                await add_requests(client, 0)
                await client.ended(*range(NUM_REQUESTS))
                await add_requests(client, 100)
                await eventually(lambda: len(tokens_of(client, 100)[0].get(0, ())) > 20)
                first = rank_processes(process)
                first[1].kill()
                await client.ended(*range(100, 100 + NUM_REQUESTS))
                assert tokens_of(client, 100) == tokens_of(client, 0)
            await assert_idle(scheduler)
            second = rank_processes(process)
            assert len(first) == len(second) == 3
            assert all(map(has_ended, first))
            second[0].terminate()  # rank 0 ends the worker in order, and torchrun has nothing to do
            assert await asyncio.to_thread(process.wait, EVENT_S) == 0, log.read_text()
            assert all(map(has_ended, second))
        finally:
            for one in [*process.children(recursive=True), process] if process.is_running() else []:
                one.kill()
            process.wait()


def rank_processes(process: psutil.Popen) -> list[psutil.Process]:
    return sorted(process.children(), key=lambda one: int(one.environ()["RANK"]))

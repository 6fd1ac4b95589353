"""Tokens of adapters that come and go under load equal PEFT's, whatever happens to a worker."""

import asyncio
import contextlib
from pathlib import Path

import pytest

from signalbox_protos.common.v1 import common_pb2
from signalbox_scheduler.config import SchedulerConfig
from tests.gpu_worker.files.adapters.peft_adapters import KINDS
from tests.gpu_worker.files.adapters.test_tokens import BASE, NUM_TOKENS, Adapted
from tests.gpu_worker.model_runners import make_runner
from tests.integration.adapters.loading import listed, load, loaded_on, unload, until_all_have
from tests.integration.stack import (
    RunningWorker,
    assert_idle,
    router,
    running_scheduler,
    running_worker,
    until_workers,
)
from tests.native_kernels import skip_without_native_kernels
from tests.waiting import eventually

pytestmark = pytest.mark.slow
GREEDY = common_pb2.SamplingParams(top_p=1.0)


@pytest.mark.parametrize("backend", ["native", "torch"])
async def test_eight_adapters_are_loaded_and_unloaded_under_load_and_a_worker_is_killed(
    tmp_path: Path, backend: str
) -> None:
    if backend == "native":
        skip_without_native_kernels()
    adapted = Adapted(tmp_path, "llama3", head_dim=16)
    names = [f"a{i}" for i in range(len(KINDS))]

    def worker() -> contextlib.AbstractAsyncContextManager[RunningWorker]:
        return running_worker(
            scheduler.address,
            lambda: make_runner(tmp_path, cpu_backend=backend, adapter_dir=tmp_path / "adapters"),
            adapter_dir=tmp_path / "adapters",
        )

    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        worker() as first,
        worker() as second,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 2)
        cluster = scheduler.cluster

        def has_ended(handle: int) -> bool:
            return client.got[handle].end is not None

        shas = {name: (await load(client, name, name)).sha256 for name in names}

        async def ask(turn: int) -> None:
            """Asks for each adapter, and for the base model."""
            for i, (prompt, number) in enumerate(
                zip(adapted.prompts, adapted.adapters, strict=True)
            ):
                adapter = "" if number == BASE else shas[f"a{number}"]
                await client.add(100 * turn + i, prompt, adapter=adapter, max_tokens=NUM_TOKENS)

        for turn in range(4):
            await ask(turn)
        await eventually(lambda: len(cluster.requests) + sum(map(has_ended, client.got)) == 40)
        for name in names[:4]:  # while their requests run
            await unload(client, name)
        await first.kill()
        async with worker() as third:
            await until_workers(scheduler, 2)
            assert loaded_on(third) >= {(name, shas[name]) for name in names[4:]}
            await asyncio.gather(*(load(client, name, name) for name in names[:4]))
            await ask(4)
            ended = await client.ended(*client.got)
            for got, expected in zip(ended, 5 * adapted.expected, strict=True):
                got.assert_served()
                assert got.tokens[0] == expected
            for name in names:
                await unload(client, name)
            await until_all_have([second, third])
            assert await listed(client) == []
            await assert_idle(scheduler)

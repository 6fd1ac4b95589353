"""Adapters through schedulers and workers: who may join, and right tokens when a worker is lost."""

import asyncio
from typing import Any

import pytest

from signalbox_contract.errors import Code
from signalbox_contract.model import Adapter
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.service.registration_client import RegistrationRefused
from tests.integration.adapters.loading import NUM_TOKENS, PROMPT
from tests.integration.stack import (
    assert_idle,
    router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually

SQL = Adapter(name="sql", sha256="a1" * 32, path="/adapters/sql")
CHAT = Adapter(name="chat", sha256="b2" * 32)
ADAPTERS = ("", SQL.sha256, CHAT.sha256)


def adapted(**settings: Any) -> Any:
    return simulated(adapters=(CHAT, SQL), num_gpu_blocks=256, **settings)


async def test_adapters_of_one_prompt_share_no_block_and_survive_a_lost_worker() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, adapted(step_ns=2_000_000)) as lost,
        running_worker(scheduler.address, adapted(step_ns=2_000_000)),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 2)
        for i in range(24):  # most find blocks of others with their adapter
            await client.add(i, PROMPT, adapter=ADAPTERS[i % 3], max_tokens=NUM_TOKENS)
        await eventually(lambda: all(got.tokens for got in client.got.values()))
        await lost.kill()
        for i, got in enumerate(await client.ended(*range(24))):
            assert got.tokens[0] == expected_tokens(
                PROMPT, num_tokens=NUM_TOKENS, adapter=ADAPTERS[i % 3]
            )
        await assert_idle(scheduler)


async def test_each_adapter_has_tokens_of_its_own() -> None:
    assert len({tuple(expected_tokens(PROMPT, num_tokens=4, adapter=a)) for a in ADAPTERS}) == 3


async def test_a_request_for_an_adapter_that_no_worker_has_is_refused() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, adapted()),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await client.add(1, PROMPT, adapter="c3" * 32)
        (got,) = await client.ended(1)
        assert got.end is not None and got.end.code == Code.NOT_FOUND.value
        assert "c3c3" in got.end.message and not got.tokens
        await assert_idle(scheduler)


@pytest.mark.parametrize(
    "others", [(), (SQL,), (Adapter(name="chat", sha256="c3" * 32), SQL)], ids=len
)
async def test_a_worker_with_other_adapters_may_not_join(others: tuple[Adapter, ...]) -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, adapted()),
    ):
        await until_workers(scheduler, 1)
        async with running_worker(scheduler.address, simulated(adapters=others)) as refused:
            async with asyncio.timeout(EVENT_S):
                with pytest.raises(RegistrationRefused, match=r"serves the adapters chat \(b2b2"):
                    await refused.task
        await assert_idle(scheduler)

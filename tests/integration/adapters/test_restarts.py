"""Adapters outlive restarts: workers that join load them, a scheduler learns them from workers."""

import asyncio
from pathlib import Path

import pytest

from signalbox_contract.model import Adapter
from signalbox_scheduler.config import SchedulerConfig
from signalbox_worker.service.registration_client import RegistrationRefused
from tests.integration.adapters.loading import (
    NUM_TOKENS,
    PROMPT,
    check_tokens,
    listed,
    load,
    loaded_on,
    make_stack,
    unload,
    until_all_have,
    worker_of,
    write_adapter,
)
from tests.integration.stack import assert_idle, restarted, router, running_scheduler, until_workers
from tests.simulated_model import expected_tokens
from tests.waiting import EVENT_S, eventually


async def test_a_worker_that_joins_loads_first(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        await load(stack.client, "sql", "sql")
        async with stack.worker() as third:
            await until_workers(stack.scheduler, 3)
            assert loaded_on(third) == {("sql", of_sql)}
            for one in stack.workers:
                await one.kill()
            await until_workers(stack.scheduler, 1)
            await check_tokens(stack.client, 1, of_sql)


async def test_adapters_outlive_a_restart_of_every_worker(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        await load(stack.client, "sql", "sql")
        await stack.client.add(1, PROMPT, adapter=of_sql, max_tokens=NUM_TOKENS)
        for one in stack.workers:
            await one.kill()
        await until_workers(stack.scheduler, 0)
        async with stack.worker() as another:
            (got,) = await stack.client.ended(1)
            assert got.tokens[0] == expected_tokens(PROMPT, num_tokens=NUM_TOKENS, adapter=of_sql)
            assert loaded_on(another) == {("sql", of_sql)}


async def test_adapters_outlive_a_restart_of_the_scheduler(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        await load(stack.client, "sql", "sql")
        async with restarted(stack.scheduler) as scheduler, router(scheduler.address) as client:
            # One that starts now does not have it; it may register before the others.
            async with worker_of(scheduler, tmp_path) as fresh:
                await until_workers(scheduler, 3)
                await until_all_have([fresh, *stack.workers], ("sql", of_sql))
                await check_tokens(client, 1, of_sql)
                await unload(client, "sql")
                await until_all_have([fresh, *stack.workers])
            await assert_idle(scheduler)


async def test_a_worker_that_missed_an_unload_unloads_when_it_joins_again(tmp_path: Path) -> None:
    write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        await load(stack.client, "sql", "sql")
        away = stack.workers[0]
        away.task.cancel()
        await until_workers(stack.scheduler, 1)
        assert loaded_on(away)
        await unload(stack.client, "sql")
        await until_all_have(stack.workers[1:])
        back = asyncio.create_task(away.registration.run())
        await until_workers(stack.scheduler, 2)
        assert not loaded_on(away)
        assert await listed(stack.client) == []
        back.cancel()


async def test_a_worker_waits_for_files_that_no_other_one_can_send(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    of_sql = write_adapter(here / "sql")
    there.mkdir()
    async with make_stack(here) as stack:
        await load(stack.client, "sql", "sql")
        (here / "sql" / "adapter_config.json").unlink()
        async with worker_of(stack.scheduler, there) as late:
            await eventually(lambda: f"the adapter sql ({of_sql[:12]}) is served" in caplog.text)
            assert len(stack.scheduler.cluster.step_loops) == 2
            write_adapter(there / "sql")
            await until_workers(stack.scheduler, 3)
            assert loaded_on(late) == {("sql", of_sql)}


async def test_a_resumed_request_waits_for_a_worker_with_its_adapter(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        await stack.client.add(1, PROMPT, adapter=of_sql, max_tokens=NUM_TOKENS, attempt=1)
        await check_tokens(stack.client, 2, "")
        assert not stack.client.got[1].tokens
        await load(stack.client, "sql", "sql")
        (got,) = await stack.client.ended(1)
        assert got.tokens[0] == expected_tokens(PROMPT, num_tokens=NUM_TOKENS, adapter=of_sql)


async def test_a_worker_started_with_another_adapter_of_a_loaded_name_is_refused(
    tmp_path: Path,
) -> None:
    write_adapter(tmp_path / "sql")
    given = Adapter(name="sql", sha256="a1" * 32)
    async with make_stack(tmp_path) as stack:
        await load(stack.client, "sql", "sql")
        async with stack.worker(adapters=(given,)) as other, asyncio.timeout(EVENT_S):
            with pytest.raises(RegistrationRefused, match="give all workers the same"):
                await other.task


async def test_an_adapter_of_the_start_may_be_unloaded(tmp_path: Path) -> None:
    given = Adapter(name="sql", sha256="a1" * 32)
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        worker_of(scheduler, tmp_path, adapters=(given,)) as first,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        await check_tokens(client, 1, given.sha256)
        await unload(client, "sql")
        await until_all_have([first])
        async with worker_of(scheduler, tmp_path, adapters=(given,)) as second:
            await until_workers(scheduler, 2)
            assert not loaded_on(second)
        await assert_idle(scheduler)

"""What cannot be loaded is refused on all workers, with the reason, and nothing is lost."""

import asyncio
import json
from pathlib import Path

import grpc
import pytest

from signalbox_scheduler.config import SchedulerConfig
from tests.integration.adapters.loading import (
    StatusCode,
    check_tokens,
    listed,
    load,
    loaded_on,
    make_stack,
    refused,
    unload,
    worker_of,
    write_adapter,
)
from tests.integration.stack import (
    assert_idle,
    router,
    running_scheduler,
    running_worker,
    simulated,
    until_workers,
)


async def test_all_workers_have_it_or_none(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_adapter(here / "sql")
    (there / "sql").mkdir(parents=True)
    write_adapter(here / "chat", "one")
    write_adapter(there / "chat", "another")
    async with make_stack(here) as stack, worker_of(stack.scheduler, there) as third:
        await until_workers(stack.scheduler, 3)
        details = await refused(load(stack.client, "sql", "sql"), StatusCode.FAILED_PRECONDITION)
        assert "cannot load it" in details and "adapter_config.json" in details
        assert "127.0.0.1" not in details  # clients of a router read it
        details = await refused(load(stack.client, "chat", "chat"), StatusCode.FAILED_PRECONDITION)
        assert "different files of chat" in details and "127.0.0.1" not in details
        assert all(not loaded_on(one) for one in (*stack.workers, third))
        assert await listed(stack.client) == []
        await check_tokens(stack.client, 1, "")


@pytest.mark.parametrize(
    ("name", "path", "code", "part"),
    [
        ("", "sql", StatusCode.INVALID_ARGUMENT, "name"),
        ("a\nb", "sql", StatusCode.INVALID_ARGUMENT, "printable"),
        ("x" * 101, "sql", StatusCode.INVALID_ARGUMENT, "100"),
        ("simulated", "sql", StatusCode.INVALID_ARGUMENT, "model's"),
        ("sql", "", StatusCode.INVALID_ARGUMENT, "path"),
        ("sql", "none", StatusCode.NOT_FOUND, "no folder none below --adapter-dir"),
        ("sql", "../outside", StatusCode.FAILED_PRECONDITION, "not below --adapter-dir"),
        ("sql", "/etc", StatusCode.FAILED_PRECONDITION, "not below --adapter-dir"),
        ("sql", ".", StatusCode.FAILED_PRECONDITION, "not below --adapter-dir"),
        ("sql", "linked", StatusCode.FAILED_PRECONDITION, "not below --adapter-dir"),
        ("sql", "links", StatusCode.FAILED_PRECONDITION, "not below --adapter-dir"),
        ("sql", "circle", StatusCode.FAILED_PRECONDITION, "links that lead nowhere"),
        ("sql", "pickled", StatusCode.FAILED_PRECONDITION, "adapter_model.bin is not read"),
    ],
)
async def test_what_cannot_be_loaded_is_refused_and_nothing_is_lost(
    tmp_path: Path, name: str, path: str, code: grpc.StatusCode, part: str
) -> None:
    folder = tmp_path / "adapters"
    weights = "adapter_model.safetensors"
    write_adapter(folder / "sql")
    write_adapter(tmp_path / "outside")
    (folder / "linked").symlink_to(tmp_path / "outside")
    write_adapter(folder / "links")
    (folder / "links" / weights).unlink()
    (folder / "links" / weights).symlink_to(tmp_path / "outside" / weights)
    (folder / "circle").symlink_to(folder / "circle")
    write_adapter(folder / "pickled")
    (folder / "pickled" / weights).rename(folder / "pickled" / "adapter_model.bin")
    async with make_stack(folder) as stack:
        assert part in await refused(load(stack.client, name, path), code)
        assert await listed(stack.client) == []
        await check_tokens(stack.client, 1, "")


async def test_many_expressions_are_compiled_within_a_limit_beside_the_steps(
    tmp_path: Path,
) -> None:
    write_adapter(tmp_path / "many")
    file = tmp_path / "many" / "adapter_config.json"
    config = json.loads(file.read_text())
    config["rank_pattern"] = {f"[\u0100-\ufefc]{i}": 8 for i in range(4_000)}
    file.write_text(json.dumps(config))
    async with make_stack(tmp_path) as stack:
        loading = asyncio.ensure_future(
            refused(load(stack.client, "many", "many"), StatusCode.FAILED_PRECONDITION)
        )
        await check_tokens(stack.client, 1, "")
        assert "takes too long" in await loading
        assert await listed(stack.client) == []


async def test_workers_without_a_folder_take_none() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        running_worker(scheduler.address, simulated()),
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 1)
        details = await refused(load(client, "sql", "sql"), StatusCode.NOT_FOUND)
        assert "--adapter-dir" in details
        await assert_idle(scheduler)


async def test_without_a_worker_nothing_is_loaded() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        assert await refused(load(client, "sql", "sql"), StatusCode.UNAVAILABLE)
        assert await refused(unload(client, "sql"), StatusCode.NOT_FOUND)

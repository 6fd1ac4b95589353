"""Adapters come and go while workers serve: all workers have them, or none has."""

import asyncio
from pathlib import Path
from typing import Any

from signalbox_contract.errors import Code
from signalbox_contract.model import Adapter
from signalbox_protos.scheduler.v1 import scheduler_pb2 as pb
from signalbox_rpc.metrics.registry import make_registry
from signalbox_scheduler.service.replay.replay_codec import Replay
from signalbox_scheduler.service.reports import metrics
from tests.integration.adapters.loading import (
    PROMPT,
    StatusCode,
    check_tokens,
    listed,
    load,
    loaded_on,
    make_stack,
    refused,
    unload,
    until_all_have,
    write_adapter,
)
from tests.integration.stack import until_workers
from tests.simulated_model import expected_tokens
from tests.waiting import eventually


async def test_an_adapter_is_loaded_everywhere_and_unloaded_everywhere(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        client = stack.client
        assert await load(client, "sql", "sql") == Adapter(name="sql", sha256=of_sql)
        assert all(loaded_on(one) == {("sql", of_sql)} for one in stack.workers)
        assert await listed(client) == [("sql", of_sql, False)]
        model = (await client.stub.GetModel(pb.GetModelRequest())).model
        assert [(one.name, one.path) for one in model.adapters] == [("sql", "sql")]
        await check_tokens(client, 1, of_sql)
        assert client.num_model_changes
        assert await unload(client, "sql") == 0
        await until_all_have(stack.workers)
        assert await listed(client) == []
        await client.add(2, PROMPT, adapter=of_sql)
        (got,) = await client.ended(2)
        assert got.end is not None and got.end.code == Code.NOT_FOUND.value
        assert await load(client, "sql", str(tmp_path / "sql"))
        await check_tokens(client, 3, of_sql)


async def test_metrics_name_the_adapters_of_requests_as_vllms_do(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    write_adapter(tmp_path / "chat", "chat")
    async with make_stack(tmp_path) as stack:
        cluster, client = stack.scheduler.cluster, stack.client
        registry = make_registry(lambda: metrics.samples(cluster), prefix="vllm")

        def info() -> dict[str, str]:
            (labels,) = (
                sample.labels
                for family in registry.collect()
                for sample in family.samples
                if sample.name == "vllm:lora_requests_info"
            )
            return labels

        await load(client, "sql", "sql")
        await load(client, "chat", "chat")
        assert (info()["max_lora"], info()["running_lora_adapters"]) == ("2", "")
        await client.add(1, PROMPT, adapter=of_sql, max_tokens=200)
        await eventually(lambda: bool(client.got[1].tokens))
        assert info()["running_lora_adapters"] == "sql"
        assert info()["waiting_lora_adapters"] == ""
        await client.ended(1)


async def test_requests_finish_with_an_adapter_that_is_unloaded(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        client = stack.client
        await load(client, "sql", "sql")
        for handle in range(8):
            await client.add(handle, PROMPT, adapter=of_sql, max_tokens=200)
        await eventually(lambda: all(got.tokens for got in client.got.values()))
        assert await unload(client, "sql") == 8
        assert await listed(client) == [("sql", of_sql, True)]
        assert await refused(unload(client, "sql"), StatusCode.NOT_FOUND)
        await stack.workers[0].kill()  # the other one has it still
        for got in await client.ended(*range(8)):
            assert got.tokens[0] == expected_tokens(PROMPT, num_tokens=200, adapter=of_sql)
        await until_all_have(stack.workers[1:])
        assert await listed(client) == []


async def test_an_adapter_that_leaves_may_be_loaded_again(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        client = stack.client
        await load(client, "sql", "sql")
        await client.add(1, PROMPT, adapter=of_sql, max_tokens=100)
        await eventually(lambda: bool(client.got[1].tokens))
        assert await unload(client, "sql") == 1
        await load(client, "sql", "sql")
        await client.ended(1)
        await check_tokens(client, 2, of_sql)
        assert await listed(client) == [("sql", of_sql, False)]
        assert all(loaded_on(one) == {("sql", of_sql)} for one in stack.workers)


async def test_a_new_version_replaces_one_that_requests_finish_with(tmp_path: Path) -> None:
    old, new = write_adapter(tmp_path / "v1", "one"), write_adapter(tmp_path / "v2", "two")
    async with make_stack(tmp_path) as stack:
        client = stack.client
        await load(client, "sql", "v1")
        details = await refused(load(client, "sql", "v2"), StatusCode.ALREADY_EXISTS)
        assert "unload or replace" in details
        await client.add(1, PROMPT, adapter=old, max_tokens=100)
        await eventually(lambda: bool(client.got[1].tokens))
        assert (await load(client, "sql", "v2", replace=True)).sha256 == new
        await check_tokens(client, 2, new)
        await client.ended(1)
        assert client.got[1].tokens[0] == expected_tokens(PROMPT, num_tokens=100, adapter=old)
        await until_all_have(stack.workers, ("sql", new))


async def test_two_names_of_one_content_share_it(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        client = stack.client
        await load(client, "a", "sql")
        await load(client, "b", "sql")
        await unload(client, "a")
        await until_all_have(stack.workers, ("b", of_sql))
        await check_tokens(client, 1, of_sql)


async def test_the_first_use_loads_an_adapter_that_was_not_unloaded(tmp_path: Path) -> None:
    of_sql = write_adapter(tmp_path / "sql")
    async with make_stack(tmp_path) as stack:
        client = stack.client

        def first_use() -> Any:
            return load(client, "sql", "sql", at_first_use=True)

        assert {one.sha256 for one in await asyncio.gather(*(first_use() for _ in range(4)))} == {
            of_sql
        }
        await check_tokens(client, 1, of_sql)
        await unload(client, "sql")
        assert "has been unloaded" in await refused(first_use(), StatusCode.NOT_FOUND)
        await load(client, "sql", "sql")
        assert (await first_use()).sha256 == of_sql
        assert all(loaded_on(one) == {("sql", of_sql)} for one in stack.workers)


async def test_loading_and_unloading_under_load_with_a_worker_killed(tmp_path: Path) -> None:
    names = [f"a{i}" for i in range(6)]
    shas = [write_adapter(tmp_path / name, name) for name in names]
    recording = tmp_path / "decisions"
    async with make_stack(tmp_path, recording_path=str(recording)) as stack:
        client, num = stack.client, 90
        await asyncio.gather(*(load(client, name, name) for name in names))
        for handle in range(num):
            adapter = ["", *shas][handle % 7]
            await client.add(handle, PROMPT[handle % 9 :], adapter=adapter, max_tokens=60)
        await eventually(lambda: len(stack.scheduler.cluster.requests) == num)
        for name in names[:3]:
            await unload(client, name)
        await stack.workers[0].kill()
        async with stack.worker() as third:
            for i, name in enumerate(names[:3]):
                write_adapter(tmp_path / f"new{i}", f"new {name}")
                await load(client, name, f"new{i}")
            for handle, got in enumerate(await client.ended(*range(num))):
                got.assert_served()
                assert got.tokens[0] == expected_tokens(
                    PROMPT[handle % 9 :], num_tokens=60, adapter=["", *shas][handle % 7]
                )
            await until_workers(stack.scheduler, 2)
            for name in names:
                await unload(client, name)
            await until_all_have([stack.workers[1], third])
        assert await listed(client) == []
    replay = Replay(str(recording), checks=True)
    assert replay.run() is None and replay.num_steps > 50

"""Adapters that come and go while workers serve: all workers have them, or none has."""

import asyncio
import contextlib
import json
import tempfile
from collections.abc import AsyncIterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

import grpc
import pytest

from contract.errors import Code
from contract.model import Adapter
from gpu_worker.adapters import received_adapters
from gpu_worker.config import ModelError
from gpu_worker.registration_client import RegistrationRefused
from gpu_worker.simulated.simulated_runner import expected_tokens
from protos.scheduler.v1 import scheduler_pb2 as pb
from rpc.metrics.registry import make_registry
from scheduler_svc.config import SchedulerConfig
from scheduler_svc.replay.replay_codec import Replay
from scheduler_svc.reports import metrics
from tests.integration.stack import (
    Router,
    RunningScheduler,
    RunningWorker,
    restarted,
    router,
    running_scheduler,
    running_worker,
    simulated,
)
from tests.integration.test_scheduler_and_workers import assert_idle, until_workers
from tests.waiting import EVENT_S, eventually

PROMPT = list(range(100, 140))
NUM_TOKENS = 40
StatusCode = grpc.StatusCode


def write_adapter(folder: Path, content: str = "weights") -> str:
    """Writes files that a simulated worker takes for an adapter; returns its SHA-256."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}
    digest = sha256()
    for name, text in (
        ("adapter_config.json", json.dumps(config)),
        ("adapter_model.safetensors", content),
    ):
        (folder / name).write_text(text)
        digest.update(sha256(text.encode()).digest())
    return digest.hexdigest()


async def load(client: Router, name: str, path: str, **flags: bool) -> Adapter:
    request = pb.LoadAdapterRequest(name=name, path=path, **flags)
    answer = await client.stub.LoadAdapter(request, timeout=EVENT_S)
    return Adapter(name=answer.adapter.name, sha256=answer.adapter.sha256)


async def unload(client: Router, name: str) -> int:
    answer = await client.stub.UnloadAdapter(pb.UnloadAdapterRequest(name=name))
    return int(answer.num_requests)


async def listed(client: Router) -> list[tuple[str, str, bool]]:
    answer = await client.stub.ListAdapters(pb.ListAdaptersRequest())
    return [(one.adapter.name, one.adapter.sha256, one.is_leaving) for one in answer.adapters]


async def refused(doing: Any, code: grpc.StatusCode) -> str:
    with pytest.raises(grpc.aio.AioRpcError) as error:
        await doing
    assert error.value.code() is code, error.value.details()
    return error.value.details() or ""


async def check_tokens(client: Router, handle: int, adapter: str) -> None:
    await client.add(handle, PROMPT, adapter=adapter, max_tokens=NUM_TOKENS)
    (got,) = await client.ended(handle)
    assert got.end is not None and got.end.code == 0, got.end
    assert got.tokens[0] == expected_tokens(PROMPT, num_tokens=NUM_TOKENS, adapter=adapter)


def loaded_on(worker: RunningWorker) -> set[tuple[str, str]]:
    return {(one.name, one.sha256) for one in worker.worker.model.adapters}


async def until_all_have(workers: list[RunningWorker], *adapters: tuple[str, str]) -> None:
    await eventually(lambda: all(loaded_on(one) == set(adapters) for one in workers))


@dataclass(slots=True)
class Stack:
    """A scheduler and two workers that take adapters below one folder."""

    scheduler: RunningScheduler
    workers: list[RunningWorker]
    client: Router
    folder: Path

    def worker(self, **settings: Any) -> "contextlib.AbstractAsyncContextManager[RunningWorker]":
        """Another worker with the same files."""
        return worker_of(self.scheduler, self.folder, **settings)


def worker_of(
    scheduler: RunningScheduler, folder: Path, **settings: Any
) -> "contextlib.AbstractAsyncContextManager[RunningWorker]":
    make = simulated(num_gpu_blocks=256, **({"step_ns": 1_000_000} | settings))
    return running_worker(scheduler.address, make, adapter_dir=folder)


@contextlib.asynccontextmanager
async def make_stack(folder: Path, **config: Any) -> AsyncIterator[Stack]:
    async with (
        running_scheduler(SchedulerConfig(port=0, **config)) as scheduler,
        worker_of(scheduler, folder) as first,
        worker_of(scheduler, folder) as second,
        router(scheduler.address) as client,
    ):
        await until_workers(scheduler, 2)
        yield Stack(scheduler, [first, second], client, folder)
        await assert_idle(scheduler)


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
        registry = make_registry(lambda families: metrics.read(cluster, families), prefix="vllm")

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
        details = await refused(load(stack.client, "chat", "chat"), StatusCode.FAILED_PRECONDITION)
        assert "different files of chat" in details
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
    write_adapter(folder / "pickled")
    (folder / "pickled" / weights).rename(folder / "pickled" / "adapter_model.bin")
    async with make_stack(folder) as stack:
        assert part in await refused(load(stack.client, name, path), code)
        assert await listed(stack.client) == []
        await check_tokens(stack.client, 1, "")


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


async def test_without_a_worker_nothing_is_loaded() -> None:
    async with (
        running_scheduler(SchedulerConfig(port=0)) as scheduler,
        router(scheduler.address) as client,
    ):
        assert await refused(load(client, "sql", "sql"), StatusCode.UNAVAILABLE)
        assert await refused(unload(client, "sql"), StatusCode.NOT_FOUND)


# They stay


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


# Workers without the files


@pytest.fixture
def private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where workers make folders for what they are sent."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def files_below(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.rglob("*") if file.is_file())


def modes_of_folders_below(folder: Path) -> list[int]:
    return [one.stat().st_mode & 0o777 for one in folder.rglob("*") if one.is_dir()]


async def test_workers_without_the_files_are_sent_them(tmp_path: Path, private: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    of_sql = write_adapter(here / "sql", "weights" * 400_000)  # in several messages
    there.mkdir()
    async with make_stack(here) as stack:
        async with worker_of(stack.scheduler, there) as third:
            await until_workers(stack.scheduler, 3)
            await load(stack.client, "sql", "sql")
            assert loaded_on(third) == {("sql", of_sql)}
            assert files_below(private) == ["adapter_config.json", "adapter_model.safetensors"]
            assert modes_of_folders_below(private) == [0o700, 0o700]
            for one in stack.workers:
                await one.kill()
            await until_workers(stack.scheduler, 1)
            async with worker_of(stack.scheduler, there) as fourth:  # by the one that was sent them
                await until_workers(stack.scheduler, 2)
                assert loaded_on(fourth) == {("sql", of_sql)}
                await third.kill()
                await until_workers(stack.scheduler, 1)
                await check_tokens(stack.client, 1, of_sql)
                await unload(stack.client, "sql")
                await eventually(lambda: len(files_below(private)) == 2)
        assert not modes_of_folders_below(private)


async def test_files_that_have_changed_are_not_loaded(
    tmp_path: Path, private: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    of_sql = write_adapter(here / "sql")
    there.mkdir()
    async with make_stack(here) as stack:
        await load(stack.client, "sql", "sql")
        write_adapter(here / "sql", "another")
        async with worker_of(stack.scheduler, there) as late:
            await eventually(lambda: "changed since it was loaded" in caplog.text)
            assert not late.worker.model.adapters and not files_below(private)
            write_adapter(here / "sql")
            await until_workers(stack.scheduler, 3)
            assert loaded_on(late) == {("sql", of_sql)}


async def test_files_beyond_the_bound_and_workers_that_take_none_are_named(
    tmp_path: Path, private: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    write_adapter(here / "sql", "weights" * 400_000)
    there.mkdir()
    async with make_stack(here) as stack:
        with monkeypatch.context() as patch:
            patch.setattr(received_adapters, "MAX_BYTES", 1 << 20)
            async with worker_of(stack.scheduler, there):
                await until_workers(stack.scheduler, 3)
                loading = load(stack.client, "sql", "sql")
                details = await refused(loading, StatusCode.FAILED_PRECONDITION)
                assert "copy it to all workers" in details
        async with running_worker(stack.scheduler.address, simulated()):
            await until_workers(stack.scheduler, 3)
            loading = load(stack.client, "sql", "sql")
            details = await refused(loading, StatusCode.FAILED_PRECONDITION)
            assert "set --adapter-dir" in details
        assert await listed(stack.client) == [] and not files_below(private)
        assert all(not loaded_on(one) for one in stack.workers)


@pytest.mark.parametrize("name", ["../outside", "/etc/passwd", "adapter_model.bin", ""])
def test_no_other_file_is_written(tmp_path: Path, name: str) -> None:
    with pytest.raises(ModelError, match="no file of an adapter"):
        received_adapters.write_chunk(tmp_path, received_adapters.FileChunk(name, b"x"))
    assert not list(tmp_path.iterdir())


# Under load


async def test_loading_and_unloading_under_load_with_a_worker_killed(tmp_path: Path) -> None:
    names = [f"a{i}" for i in range(6)]
    shas = [write_adapter(tmp_path / name, name) for name in names]
    recording = tmp_path / "decisions"
    async with make_stack(tmp_path, record=str(recording)) as stack:
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
                assert got.end is not None and got.end.code == 0, got.end
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

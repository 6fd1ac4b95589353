"""Workers without the files of an adapter are sent them, and keep them as long as they have it."""

import tempfile
from pathlib import Path

import pytest

from signalbox_worker.config import ModelError
from signalbox_worker.files.adapters import received_adapters
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
from tests.integration.stack import running_worker, simulated, until_workers
from tests.waiting import eventually


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


async def test_a_worker_that_starts_removes_what_a_killed_one_was_sent(
    tmp_path: Path, private: Path
) -> None:
    left = private / "signalbox-adapters-left" / "one"
    write_adapter(left)
    async with make_stack(tmp_path):
        assert not files_below(private)


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


async def test_a_worker_that_cannot_write_what_it_is_sent_says_so(
    tmp_path: Path, private: Path
) -> None:
    write_adapter(tmp_path / "here" / "sql")
    (tmp_path / "there").mkdir()
    private.rmdir()  # noqa: ASYNC240
    async with (
        make_stack(tmp_path / "here") as stack,
        worker_of(stack.scheduler, tmp_path / "there"),
    ):
        await until_workers(stack.scheduler, 3)
        loading = load(stack.client, "sql", "sql")
        assert "cannot be written" in await refused(loading, StatusCode.FAILED_PRECONDITION)
        assert await listed(stack.client) == []

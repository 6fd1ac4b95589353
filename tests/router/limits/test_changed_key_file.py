"""A file of API keys that changes under a running router: what each next call is answered."""

import asyncio
import fcntl
import os
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from signalbox import cli
from tests.router.limits.router_process import RouterProcess, entries, router_process
from tests.waiting import eventually

MANY = 20_000


@pytest.fixture
async def router(tmp_path: Path) -> AsyncIterator[RouterProcess]:
    async with router_process(tmp_path, entries("old", "other")) as router:
        yield router


async def test_calls_wait_for_the_writer_of_a_file_and_others_are_answered(
    router: RouterProcess,
) -> None:
    with router.keys.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(entries("new")[:20])
        file.truncate()
        file.flush()
        waiting = asyncio.gather(*(router.knows(key) for key in ("new", "old", "other")))
        for _ in range(3):
            assert await router.status("/health") == 503  # of a router without a scheduler
        assert not waiting.done()
        file.write(entries("new")[20:] + entries("other"))
    assert await waiting == [True, False, True]


async def test_a_file_whose_reader_was_killed_is_read_by_the_next_call(
    router: RouterProcess,
) -> None:
    with router.keys.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        file.write(entries("new"))
        file.truncate()
        file.flush()
        waiting = asyncio.ensure_future(router.knows("new"))
        await eventually(psutil.Process(router.service.pid).children)
        for reader in psutil.Process(router.service.pid).children():
            reader.kill()
        assert not await waiting
    assert await router.knows("new")
    assert not await router.knows("old")


async def test_many_keys_are_read_beside_the_router(router: RouterProcess) -> None:
    process = psutil.Process(router.service.pid)
    before = process.cpu_times()
    router.keys.write_text(entries(*(f"k{number}" for number in range(MANY))))
    assert await router.knows(f"k{MANY - 1}")
    after = process.cpu_times()
    assert after.user - before.user < 1  # of CPU time; to parse it takes ten times as much
    assert not await router.knows("old")
    assert not process.children()


UNREADABLE = {
    "empty": "",
    "comment": "# no keys yet\n",
    "cut": entries("old", "new")[:-5],
    "zeros": "\0" * 100,
    "deep": "[" * 100_000,
    "date": "- name: 2026-13-45",
    "twice": entries("new", "new"),
}


async def test_a_file_that_cannot_be_read_changes_nothing_and_the_log_says_so(
    router: RouterProcess,
) -> None:
    for number, (name, text) in enumerate(UNREADABLE.items(), start=1):
        router.keys.write_text(text)
        assert await router.knows("old"), name
        kept = router.log.read_bytes().count(b"the keys from before stay in use")
        assert kept >= number, name
    router.keys.write_text(entries("new"))
    assert await router.knows("new")
    assert not await router.knows("old")


async def test_a_file_that_is_replaced_by_a_pipe_or_gets_its_old_time_delays_no_call(
    router: RouterProcess,
) -> None:
    before = router.keys.stat()
    router.keys.write_text(entries("new", "other"))
    os.utime(router.keys, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await router.knows("new")
    assert not await router.knows("old")
    router.keys.unlink()
    os.mkfifo(router.keys)
    assert await router.knows("new")
    assert b"it is no regular file" in router.log.read_bytes()


async def test_a_revoked_key_is_refused_from_the_next_call(router: RouterProcess) -> None:
    inode = router.keys.stat().st_ino
    for key, left in (("old", True), ("other", False)):
        assert cli.main(["keys", "revoke", key, "--file", str(router.keys)]) == 0
        assert not await router.knows(key)
        assert await router.knows("other") is left
    assert cli.main(["keys", "create", "next", "--file", str(router.keys)]) == 0
    assert router.keys.stat().st_ino == inode  # a container mounts the file itself

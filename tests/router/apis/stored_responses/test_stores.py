"""Stores of responses: bounds, owners, and files that were cut, filled or cannot be written."""

import asyncio
import contextlib
import os
import sqlite3
import tempfile
import zlib
from array import array
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from string import ascii_letters
from typing import Any

import pytest

from signalbox_router.apis.openai.requests.errors import NoSuchResponse
from signalbox_router.apis.stored_responses import sqlite_store
from signalbox_router.apis.stored_responses.memory_store import MemoryResponseStore
from signalbox_router.apis.stored_responses.response_store import (
    Bounds,
    ResponseStore,
    StoreFailed,
    StoreFull,
)
from signalbox_router.apis.stored_responses.sqlite_store import SqliteStore
from signalbox_router.apis.stored_responses.stored_response import StoredResponse, StoredRow
from signalbox_router.prompt.tokenization.kept_tokens import KeptTokens

MIB = 1 << 20
WIDE = Bounds(max_bytes=MIB, max_age_s=1e9)
Open = Callable[..., Any]


@pytest.fixture(params=["memory", "sqlite"])
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Open:
    """Opens a store with bounds."""

    @contextlib.asynccontextmanager
    async def open_(bounds: Bounds = WIDE) -> AsyncIterator[ResponseStore]:
        is_memory = request.param == "memory"
        store = (
            MemoryResponseStore(bounds)
            if is_memory
            else SqliteStore(str(tmp_path / "kept"), bounds)
        )
        await store.open()
        yield store
        await store.close()

    return open_


@contextlib.asynccontextmanager
async def in_file(path: Path, bounds: Bounds = WIDE) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(str(path), bounds)
    await store.open()
    yield store
    await store.close()


def response(name: str = "resp_a", status: str = "completed", **fields: Any) -> StoredResponse:
    known: dict[str, Any] = {
        "id": name,
        "tenant": "",
        "created_at": 1e12,
        "body": b'{"status":"%b","output":[]}' % status.encode(),
        "items": b"[]",
        "kept": KeptTokens([1, 2, 3], [(1, 3)]),
    }
    return StoredResponse(**known | fields)


def row(name: str, num_bytes: int = 100, **fields: Any) -> StoredRow:
    known: dict[str, Any] = {"id": name, "tenant": "", "created_at": 1e12}
    return StoredRow(**known | {"content": bytes(num_bytes - len(name))} | fields)


def names_in(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def set_modes(path: Path, of_file: int, of_folder: int) -> None:
    path.chmod(of_file)
    path.parent.chmod(of_folder)


async def names_of(store: ResponseStore, *names: str) -> list[str]:
    return [name for name in names if await store.get(name, tenant="") is not None]


async def test_a_response_is_read_as_it_was_kept_by_its_tenant_alone(opened: Open) -> None:
    async with opened() as store:
        kept = response(tenant="a", request=b'{"seed":1}')
        await store.keep(kept)
        found = await store.find(kept.id, tenant="a")
        assert (found.body, found.items, found.request) == (kept.body, kept.items, kept.request)
        assert ([*found.kept.token_ids], found.kept.answers) == ([1, 2, 3], [(1, 3)])
        for tenant in ("", "b"):
            with pytest.raises(NoSuchResponse, match=store.place):
                await store.find(kept.id, tenant=tenant)
            assert not await store.remove(kept.id, tenant=tenant)
        assert await store.remove(kept.id, tenant="a")
        assert store.usage() == (0, 0)
        with pytest.raises(NoSuchResponse):
            await store.find(kept.id, tenant="a")


async def test_the_oldest_make_room_and_are_counted(opened: Open) -> None:
    async with opened(Bounds(max_bytes=350, max_age_s=1e9)) as store:
        await store.put(row("running", is_running=True))
        for i, name in enumerate("abc"):
            await store.put(row(name, created_at=1e12 + i))
        assert await names_of(store, "running", "a", "b", "c") == ["running", "b", "c"]
        assert store.num_dropped == Counter(room=1)
        assert store.usage() == (3, 300)
        with pytest.raises(StoreFull, match="--response-store-size"):
            await store.put(row("large", 351))
        assert await names_of(store, "b", "c") == ["b", "c"]
        with pytest.raises(StoreFull, match="running responses"):
            await store.put(row("d", 300))
        assert await store.replace(row("running", 250))
        assert await names_of(store, "running", "b", "c") == ["running", "c"]


async def test_a_response_is_dropped_at_its_age_unless_it_runs(opened: Open) -> None:
    async with opened(Bounds(max_bytes=MIB, max_age_s=60)) as store:
        await store.put(row("old", created_at=5.0))
        await store.put(row("running", created_at=6.0, is_running=True))
        assert await names_of(store, "old", "running") == ["running"]
        await store.put(row("new"))
        assert store.usage()[0] == 2
        assert store.num_dropped == Counter(age=1)


async def test_a_response_is_not_found_beyond_its_age_wherever_it_lies(opened: Open) -> None:
    async with opened(Bounds(max_bytes=MIB, max_age_s=60)) as store:
        await store.put(row("new"))
        await store.put(row("old", created_at=5.0))
        assert await names_of(store, "new", "old") == ["new"]


async def test_the_tenant_that_uses_most_makes_room(opened: Open) -> None:
    async with opened(Bounds(max_bytes=500, max_age_s=1e9)) as store:
        await store.put(row("mine", tenant="a", num_bytes=99))
        for i in range(6):
            await store.put(row(f"b{i}", tenant="b", created_at=1e12 + i, num_bytes=99))
        assert await store.get("mine", tenant="a") is not None
        assert await store.get("b1", tenant="b") is None
        await store.put(row("too", tenant="a", num_bytes=99))
        for name in ("mine", "too"):
            assert await store.get(name, tenant="a") is not None
        assert store.num_dropped == Counter(room=3)


def turns(number: int) -> list[StoredResponse]:
    """Responses of one conversation, each with the context of all earlier ones."""
    items, tokens, made = "[0]", [0], []
    random = Random(0)
    for i in range(number):
        text = "".join(random.choices(ascii_letters, k=3000))
        items = f'{items[:-1]},{{"text":"{text}"}}]'
        tokens += [random.randrange(50_000) for _ in range(1000)]
        kept = KeptTokens(array("i", tokens), [(1, 3)])
        made.append(response(f"resp_{i}", items=items.encode(), kept=kept, created_at=1e12 + i))
    return made


async def test_turns_share_their_context_and_outlive_each_other(opened: Open) -> None:
    made = turns(20)
    wide = Bounds(max_bytes=64 * MIB, max_age_s=1e9)
    async with opened(wide) as store:
        for one in made:
            await store.keep(one)
        assert store.usage()[1] < 5 * made[-1].row().num_bytes_alone
        for one in (*made[:7], *made[9:-1]):
            assert await store.remove(one.id, tenant="")
        for one in (*made[7:9], made[-1]):
            found = await store.find(one.id, tenant="")
            assert (found.items, [*found.kept.token_ids]) == (one.items, [*one.kept.token_ids])
        for one in (*made[7:9], made[-1]):
            await store.remove(one.id, tenant="")
        assert store.usage() == (0, 0)


async def test_a_chain_makes_room_until_it_fits(opened: Open) -> None:
    made = turns(8)
    bounds = Bounds(max_bytes=made[-1].row().num_bytes_alone + 1000, max_age_s=1e9)
    async with opened(bounds) as store:
        for one in made:
            await store.keep(one)
            assert store.usage()[1] <= bounds.max_bytes
        assert (await store.find("resp_7", tenant="")).items == made[-1].items
        assert store.num_dropped["room"] == 8 - store.usage()[0]


async def test_tenants_share_nothing(opened: Open) -> None:
    (*_, last) = turns(8)
    async with opened() as store:
        await store.keep(last)
        alone = store.usage()[1]
        await store.keep(replace(last, id="resp_z", tenant="z"))
        assert store.usage()[1] == 2 * alone + 1  # the tenant's name
        assert await store.remove("resp_z", tenant="z")
        assert store.usage() == (1, alone)


def of_another_version(name: str, **fields: Any) -> StoredRow:
    return row(name, **{"content": zlib.compress(b"\x63and what it likes")} | fields)


async def test_a_response_of_another_version_is_left(
    opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    async with opened() as store:
        for name in ("resp_a", "resp_b"):
            await store.put(of_another_version(name))
            with pytest.raises(NoSuchResponse, match="another version"):
                await store.find(name, tenant="")
        assert await names_of(store, "resp_a", "resp_b") == ["resp_a", "resp_b"]
        assert not store.num_dropped.total()
        assert caplog.text.count("another version of the router") == 1


async def test_a_response_of_another_version_runs_at_its_routers(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    async with in_file(path) as other:
        async with in_file(path) as leaving:
            await leaving.put(of_another_version("resp_a", is_running=True))
            await leaving.keep(response("resp_b", "queued"))
        assert [one.id for one in await other.adopt()] == ["resp_b"]
        assert await other.running(["resp_a", "resp_b"]) == {"resp_b"}
        assert await other.adopt() == []


async def test_a_response_is_not_replaced_by_one_that_lacks_room(opened: Open) -> None:
    async with opened(Bounds(max_bytes=350, max_age_s=1e9)) as store:
        for name in ("resp_a", "resp_b"):
            await store.put(row(name, is_running=True))
        with pytest.raises(StoreFull, match="running responses"):
            await store.replace(row("resp_a", 300))
        assert store.usage() == (2, 200)


async def test_a_response_that_is_over_is_not_replaced(opened: Open) -> None:
    async with opened() as store:
        await store.keep(response(status="queued"))
        assert await store.update(response(status="in_progress"))
        assert await store.update(response(status="cancelled"))
        assert not await store.update(response(status="completed"))
        assert (await store.find("resp_a", tenant="")).fields["status"] == "cancelled"
        assert not await store.update(response("resp_b", status="completed"))


async def test_routers_share_a_file_and_a_restart_loses_nothing(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    async with in_file(path) as one, in_file(path) as two:
        await asyncio.gather(*(store.keep(response(f"{store.owner}{i}")) for i in range(20)
                               for store in (one, two)))  # fmt: skip
        assert len(await names_of(two, *(f"{one.owner}{i}" for i in range(20)))) == 20
        owners = (one.owner, two.owner)
    async with in_file(path) as three:
        names = [f"{owner}{i}" for owner in owners for i in range(20)]
        assert await names_of(three, *names) == names


async def test_what_runs_is_adopted_once_its_router_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    async with in_file(path) as other:
        dead = SqliteStore(str(path), WIDE)
        await dead.open()
        await dead.keep(response("resp_a", "in_progress"))
        assert await other.adopt() == []
        assert dead._lock._file is not None
        os.close(dead._lock._file)  # as the kernel does when a process ends
        dead._lock._file = None
        (adopted,) = await other.adopt()
        assert (adopted.id, adopted.owner, adopted.num_runs) == ("resp_a", other.owner, 2)
        assert await other.adopt() == []
        assert "resp_a" not in await dead.running(["resp_a"])
        assert not await dead.update(response("resp_a"))
        assert await other.update(response("resp_a"))
        await dead.close()
        async with in_file(path) as leaving:
            await leaving.keep(response("resp_b", "queued"))
        (adopted,) = await other.adopt()
        assert (adopted.id, adopted.num_runs) == ("resp_b", 1)


async def test_what_fails_to_be_adopted_is_adopted_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept"
    async with in_file(path) as other:
        async with in_file(path) as leaving:
            await leaving.keep(response("resp_a", "queued"))
        with monkeypatch.context() as patch:
            patch.setattr(sqlite_store, "rows", fail)
            with pytest.raises(StoreFailed, match="disk I/O"):
                await other.adopt()
        assert [one.id for one in await other.adopt()] == ["resp_a"]


def fail(*_: object) -> list[StoredRow]:
    raise sqlite3.OperationalError("disk I/O error")


@pytest.mark.parametrize("share", [0.0, 0.3, 0.6, 0.9])
async def test_what_is_left_of_a_cut_file_is_read_back(
    tmp_path: Path, share: float, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "kept"
    names = [f"resp_{i}" for i in range(40)]
    async with in_file(path) as store:
        for name in names:
            await store.keep(response(name, body=b'{"status":"completed","x":"%b"}'
                                      % os.urandom(3000).hex().encode()))  # fmt: skip
    content = path.read_bytes()
    path.write_bytes(content[: int(len(content) * share)] or b"nothing of SQLite's")
    async with in_file(path) as store:
        left = await names_of(store, *names)
        assert bool(left) is bool(share) and len(left) < len(names)
        assert left == [name for name in left if await store.find(name, tenant="")]
        assert f"{len(left)} responses were read back" in caplog.text
        if share:
            assert store.num_dropped["damage"] == len(names) - len(left)
        await store.keep(response("resp_new"))
    assert any(name.startswith("kept-damaged-") for name in names_in(tmp_path))


async def test_a_damaged_file_that_others_have_open_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "kept"
    async with in_file(path) as store:
        await store.keep(response())
        assert store._connection is not None
        store._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with path.open("r+b") as file:
            file.write(b"nothing of SQLite's")
        with pytest.raises(ValueError, match="stop them"):
            await SqliteStore(str(path), WIDE).open()


async def test_a_damaged_response_is_dropped_by_name(tmp_path: Path) -> None:
    async with in_file(tmp_path / "kept") as store:
        await store.put(row("resp_a"))
        with pytest.raises(NoSuchResponse, match="resp_a is damaged"):
            await store.find("resp_a", tenant="")
        assert store.num_dropped == Counter(damage=1)


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that other users of the machine can read; that of `tmp_path` is not."""
    with tempfile.TemporaryDirectory() as name:
        yield Path(name)


async def test_a_file_that_cannot_be_written_is_read(open_folder: Path) -> None:
    path = open_folder / "kept"
    async with in_file(path) as store:
        await store.keep(response())
    set_modes(path, 0o444, 0o555)
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    try:
        async with in_file(path) as store:
            assert await names_of(store, "resp_a") == ["resp_a"]
            with pytest.raises(StoreFailed, match="readonly"):
                await store.keep(response("resp_b"))
    finally:
        os.seteuid(user)
        set_modes(path, 0o644, 0o755)


async def test_a_full_disk_keeps_what_there_is(tmp_path: Path) -> None:
    async with in_file(tmp_path / "kept") as store:
        await store.keep(response())
        assert store._connection is not None
        (pages,) = store._connection.execute("PRAGMA page_count").fetchone()
        store._connection.execute(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(StoreFailed, match="full"):
            await store.put(row("resp_b", MIB // 2))
        assert await names_of(store, "resp_a", "resp_b") == ["resp_a"]


def test_a_folder_that_is_not_there_is_named_at_the_start(tmp_path: Path) -> None:
    store = SqliteStore(str(tmp_path / "no" / "kept"), WIDE)
    with pytest.raises(ValueError, match="--response-store sqlite:"):
        asyncio.run(store.open())


def test_sqlite_names_damage_as_the_store_reads_it(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("nothing of SQLite's" * 100)
    with pytest.raises(sqlite3.DatabaseError, match="not a database"):
        sqlite3.connect(path).execute("SELECT * FROM x")

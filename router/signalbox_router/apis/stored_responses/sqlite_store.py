"""Keeps responses in an SQLite file, which outlives the router, and which routers may share.

Each call is one transaction on the store's thread. Each router holds a lock file of its own until
it ends, so the others know when it is gone, and take its running responses over.
"""

import asyncio
import contextlib
import glob
import secrets
import sqlite3
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from signalbox_router.apis.stored_responses.file_lock import FileLock, is_held, waiting_for
from signalbox_router.apis.stored_responses.response_store import (
    Bounds,
    ResponseStore,
    StoreFailed,
)
from signalbox_router.apis.stored_responses.sqlite_file import (
    DAMAGE,
    add,
    add_pieces,
    opened,
    rows,
)
from signalbox_router.apis.stored_responses.stored_response import StoredRow

T = TypeVar("T")
_IS_MINE = "id = ? AND owner IN (?, ?) AND is_running"


class SqliteStore(ResponseStore):
    """Keeps responses in one file."""

    is_shared = True

    def __init__(self, path: str, bounds: Bounds) -> None:
        super().__init__(bounds)
        self._path = Path(path).absolute()
        self.place = f"the response store {self._path}"
        self.owner = secrets.token_hex(8)
        self._lock = FileLock(self._lock_of(self.owner))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="response store")
        self._connection: sqlite3.Connection | None = None
        self._usage = (0, 0)
        self._unreadable = set[str]()
        """Ids of running responses of another version, which its routers run."""

    async def open(self) -> None:
        await self._call(self._open)

    async def close(self) -> None:
        with contextlib.suppress(StoreFailed):
            await self._call(self._release)
        self._lock.release()
        self._thread.shutdown()

    async def put(self, row: StoredRow) -> None:
        self.check_size(row)
        await self._call(lambda: self._put(row))

    async def replace(self, row: StoredRow) -> bool:
        self.check_size(row)
        return await self._call(lambda: self._replace(row))

    async def get(self, response_id: str, *, tenant: str) -> StoredRow | None:
        return await self._call(lambda: self._get(response_id, tenant))

    async def remove(self, response_id: str, *, tenant: str) -> bool:
        return await self._call(lambda: self._remove(response_id, tenant))

    async def running(self, response_ids: Collection[str]) -> Collection[str]:
        sql = "SELECT id FROM responses WHERE is_running AND owner = ?"
        return await self._call(lambda: {str(one) for (one,) in self._read(sql, self.owner)})

    async def adopt(self) -> list[StoredRow]:
        return await self._call(self._adopt)

    def usage(self) -> tuple[int, int]:
        return self._usage

    async def _call(self, work: Callable[[], T]) -> T:
        """Runs work on the store's thread. Raises StoreFailed for an error of SQLite."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except sqlite3.Error as error:
            advice = "; a router that starts repairs it" if DAMAGE.search(str(error)) else ""
            raise StoreFailed(f"{self.place} failed: {error}{advice}", 1.0) from None

    # On the thread

    def _open(self) -> None:
        with waiting_for(self._path.with_name(f"{self._path.name}-lock")):
            is_shared = self._has_others()
            self._connection, num_lost = opened(self._path, is_shared=is_shared)
            self._lock.acquire()
        self.dropped(num_lost, "damage")
        self._count()

    def _has_others(self) -> bool:
        """Returns whether other routers have the file open; removes lock files of dead ones."""
        locks = self._path.parent.glob(f"{glob.escape(self._lock_of('').name)}*")
        held = {one: is_held(one) for one in locks}
        for one in held:
            if not held[one]:
                one.unlink(missing_ok=True)
        return any(held.values())

    def _database(self) -> sqlite3.Connection:
        assert self._connection is not None
        return self._connection

    def _read(self, sql: str, *values: object) -> Iterator[tuple[object, ...]]:
        return iter(self._database().execute(sql, values).fetchall())

    def _write(self, sql: str, *values: object) -> int:
        """Returns the number of rows that were changed."""
        with self._database() as database:
            return database.execute(sql, values).rowcount

    def _put(self, row: StoredRow) -> None:
        row = replace(row, owner=self.owner if row.is_running else "")
        with self._transaction() as database:
            self._drop_old(database)
            add(database, row)
            self._make_room(database, row.id)
        self._count()

    def _replace(self, row: StoredRow) -> bool:
        with self._transaction() as database:
            found = database.execute(
                f"SELECT rowid FROM responses WHERE {_IS_MINE}",
                (row.id, row.owner or self.owner, row.owner),
            ).fetchone()
            if found is None:
                return False
            self._drop_old(database)
            database.execute(
                "UPDATE responses SET content = ?, num_bytes = ?, is_running = ? WHERE rowid = ?",
                (row.content, row.num_bytes, row.is_running, *found),
            )
            database.execute("DELETE FROM uses WHERE response = ?", found)
            add_pieces(database, row)
            self._make_room(database, row.id)
        self._count()
        return True

    def _get(self, response_id: str, tenant: str) -> StoredRow | None:
        condition = "id = ? AND tenant = ? AND (created_at >= ? OR is_running)"
        with self._transaction("DEFERRED") as database:
            found = rows(database, condition, response_id, tenant, self.oldest_created_at())
        return next(iter(found), None)

    def _remove(self, response_id: str, tenant: str) -> bool:
        sql = "DELETE FROM responses WHERE id = ? AND tenant = ?"
        is_removed = self._write(sql, response_id, tenant) > 0
        self._count()
        return is_removed

    def _adopt(self) -> list[StoredRow]:
        sql = "SELECT id, owner FROM responses WHERE is_running AND owner <> ?"
        found = [(str(one), str(owner)) for one, owner in self._read(sql, self.owner)]
        gone = {owner for owner in {one for _, one in found} if not is_held(self._lock_of(owner))}
        left = [pair for pair in found if pair[1] in gone and pair[0] not in self._unreadable]
        if not left:
            return []
        with self._transaction() as database:  # one that is ours and not returned never ends
            for one, owner in left:
                self._take_over(database, one, owner)
            adopted = rows(database, "is_running AND owner = ?", self.owner)
        for owner in gone:
            self._lock_of(owner).unlink(missing_ok=True)
        return adopted

    def _take_over(self, database: sqlite3.Connection, response_id: str, owner: str) -> None:
        for row in rows(database, "is_running AND id = ? AND owner = ?", response_id, owner):
            if row.has_other_format:
                self._unreadable.add(row.id)
                self.tell_of_format(row.id)
                return
        database.execute(
            "UPDATE responses SET owner = ?, num_runs = num_runs + (owner <> '')"
            " WHERE is_running AND id = ? AND owner = ?",
            (self.owner, response_id, owner),
        )

    def _release(self) -> None:
        """Gives up the running responses, so that another router runs them; closes the file."""
        if self._connection is None:
            return
        try:
            sql = "UPDATE responses SET owner = '' WHERE is_running AND owner = ?"
            self._write(sql, self.owner)
        finally:
            self._connection.close()
            self._connection = None

    @contextlib.contextmanager
    def _transaction(self, kind: str = "IMMEDIATE") -> Iterator[sqlite3.Connection]:
        with self._database() as database:
            database.execute(f"BEGIN {kind}")
            yield database

    def _drop_old(self, database: sqlite3.Connection) -> None:
        sql = "DELETE FROM responses WHERE NOT is_running AND created_at < ?"
        self.dropped(database.execute(sql, (self.oldest_created_at(),)).rowcount, "age")

    def _make_room(self, database: sqlite3.Connection, newest: str) -> None:
        """Drops responses of the tenants that use most, other than the newest one."""
        num_dropped = 0
        while self._totals()[1] > self.bounds.max_bytes:
            number = self._next_to_drop(database, newest)
            if number is None:
                raise self.full()
            database.execute("DELETE FROM responses WHERE rowid = ?", (number,))
            num_dropped += 1
        self.dropped(num_dropped, "room")

    def _next_to_drop(self, database: sqlite3.Connection, newest: str) -> int | None:
        for (tenant,) in database.execute("SELECT tenant FROM tenants ORDER BY num_bytes DESC"):
            found: tuple[int] | None = database.execute(
                "SELECT rowid FROM responses WHERE tenant = ? AND is_running = 0 AND id <> ?"
                " ORDER BY created_at LIMIT 1",
                (tenant, newest),
            ).fetchone()
            if found is not None:
                return found[0]
        return None

    def _count(self) -> None:
        self._usage = self._totals()

    def _totals(self) -> tuple[int, int]:
        """Returns the numbers of responses and of bytes."""
        sql = "SELECT total(num_responses), total(num_bytes) FROM tenants"
        ((number, total),) = self._read(sql)
        return int(number), int(total)  # type: ignore[call-overload]

    def _lock_of(self, owner: str) -> Path:
        return self._path.with_name(f"{self._path.name}-router-{owner}")

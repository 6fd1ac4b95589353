"""Opens an SQLite file of responses, and repairs one that was truncated or overwritten.

A damaged file is renamed, and the responses that can still be read are copied to a new one. No
other router may have the file open meanwhile, since it would write to the renamed one.
"""

import contextlib
import logging
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from signalbox_router.apis.stored_responses.stored_response import (
    DamagedResponse,
    StoredResponse,
    StoredRow,
)

logger = logging.getLogger(__name__)

BUSY_TIMEOUT_S = 10.0
"""Most seconds that a call waits for a call of another router."""
DAMAGE = re.compile("malformed|not a database|disk I/O error")
"""Messages of SQLite about a damaged file."""
COLUMNS = ("id", "tenant", "created_at", "is_running", "owner", "num_runs", "num_bytes", "content")
_SUFFIXES = ("-wal", "-shm")
_SCHEMA = """
CREATE TABLE IF NOT EXISTS responses (
    id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL, created_at REAL NOT NULL,
    is_running INTEGER NOT NULL, owner TEXT NOT NULL, num_runs INTEGER NOT NULL,
    num_bytes INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON responses (is_running, created_at, num_bytes, id, owner);
"""


def values_of(row: StoredRow) -> tuple[Any, ...]:
    return tuple(getattr(row, name) for name in COLUMNS)


def row_of(values: tuple[Any, ...]) -> StoredRow:
    fields = dict(zip(COLUMNS, values, strict=True))
    del fields["num_bytes"]
    return StoredRow(**fields | {"is_running": bool(fields["is_running"])})


def opened(path: Path, *, is_shared: bool) -> tuple[sqlite3.Connection, int]:
    """Returns a connection to the file, which is repaired first if it is damaged, and the number of
    responses that are lost.

    Raises ValueError if the file cannot be opened, or is damaged while other routers have it open.
    """
    try:
        connection = connect(path)
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if found == "ok":
            return connection, 0
        connection.close()
    except sqlite3.Error as error:
        if not DAMAGE.search(str(error)):
            raise ValueError(f"--response-store sqlite:{path}: {error}") from None
    if is_shared:
        raise ValueError(
            f"--response-store sqlite:{path}: the file is damaged, and other routers have it open;"
            " stop them: the next router that starts repairs it"
        )
    return _repaired(path)


def connect(path: Path) -> sqlite3.Connection:
    """Returns a connection, which is read-only if the file cannot be written."""
    try:
        return _connect(path, "rwc")
    except sqlite3.OperationalError as error:
        if DAMAGE.search(str(error)) or not path.exists():
            raise
    for options in ("ro", "ro&immutable=1"):
        with contextlib.suppress(sqlite3.OperationalError):
            connection = _connect(path, options)
            logger.warning("%s cannot be written: responses are read, but none are kept", path)
            return connection
    return _connect(path, "ro")


def _connect(path: Path, mode: str) -> sqlite3.Connection:
    if mode == "rwc":
        with contextlib.suppress(OSError):  # SQLite says why it cannot be opened
            os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    uri = f"file:{quote(str(path))}?mode={mode}"
    connection = sqlite3.connect(
        uri, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
    )
    try:
        if mode == "rwc":
            connection.execute("PRAGMA journal_mode = WAL")
            connection.execute("PRAGMA synchronous = FULL")  # what was answered is on the disk
            connection.executescript(_SCHEMA)
        connection.execute("SELECT count(*) FROM responses").fetchone()
    except BaseException:
        connection.close()
        raise
    return connection


def _repaired(path: Path) -> tuple[sqlite3.Connection, int]:
    aside = path.with_name(f"{path.name}-damaged-{time.time_ns() // 1_000_000}")
    path.rename(aside)
    for suffix in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            path.with_name(path.name + suffix).rename(aside.with_name(aside.name + suffix))
    connection, num_read, num_lost = connect(path), 0, 0
    marks = ", ".join("?" for _ in COLUMNS)
    for row in _rows_of(aside):
        if row is None:
            num_lost += 1
            continue
        num_read += 1
        sql = f"INSERT OR IGNORE INTO responses ({', '.join(COLUMNS)}) VALUES ({marks})"
        connection.execute(sql, values_of(row))
    logger.error(
        "%s was damaged: %d responses were read back and at least %d are lost; the damaged file is"
        " %s", path, num_read, num_lost, aside,
    )  # fmt: skip
    return connection, num_lost


def _rows_of(path: Path) -> Iterator[StoredRow | None]:
    """Yields each row that can be read, and None for each known row that cannot."""
    uri = f"file:{quote(str(path))}?mode=rw"
    with contextlib.closing(sqlite3.connect(uri, uri=True, isolation_level=None)) as database:
        with contextlib.suppress(sqlite3.Error):
            database.execute("PRAGMA writable_schema = ON")  # else a cut file is not read at all
        for number in _numbers(database):
            try:
                sql = f"SELECT {', '.join(COLUMNS)} FROM responses WHERE rowid = ?"
                row = row_of(database.execute(sql, (number,)).fetchone())
                StoredResponse.of(row)
                yield row
            except (sqlite3.Error, DamagedResponse, TypeError):
                yield None


def _numbers(database: sqlite3.Connection) -> Iterable[int]:
    """Returns the row numbers that are found in the table, from both ends, or in its index."""
    found = chain.from_iterable(
        _scan(database, f"SELECT rowid FROM responses {way}")
        for way in ("NOT INDEXED ORDER BY rowid", "NOT INDEXED ORDER BY rowid DESC",
                    "INDEXED BY by_age")
    )  # fmt: skip
    return list(dict.fromkeys(found))


def _scan(database: sqlite3.Connection, sql: str) -> Iterator[int]:
    with contextlib.suppress(sqlite3.Error):
        for (number,) in database.execute(sql):
            yield cast(int, number)

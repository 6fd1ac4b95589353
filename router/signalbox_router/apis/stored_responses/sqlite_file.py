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

from signalbox_router.apis.stored_responses.shared_pieces import SharedPiece
from signalbox_router.apis.stored_responses.stored_response import (
    DamagedResponse,
    OtherFormat,
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
BEGIN IMMEDIATE;
CREATE TABLE IF NOT EXISTS responses (
    number INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, tenant TEXT NOT NULL,
    created_at REAL NOT NULL, is_running INTEGER NOT NULL, owner TEXT NOT NULL,
    num_runs INTEGER NOT NULL, num_bytes INTEGER NOT NULL, content BLOB NOT NULL
);
CREATE INDEX IF NOT EXISTS by_age ON responses (is_running, created_at, num_bytes, id, owner);
CREATE INDEX IF NOT EXISTS by_tenant ON responses (tenant, is_running, created_at);
CREATE TABLE IF NOT EXISTS pieces (
    number INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, tenant TEXT NOT NULL,
    content BLOB NOT NULL
);
CREATE TABLE IF NOT EXISTS uses (
    response INTEGER NOT NULL, place INTEGER NOT NULL, piece INTEGER NOT NULL,
    PRIMARY KEY (response, place)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_piece ON uses (piece);
CREATE TABLE IF NOT EXISTS tenants (
    tenant TEXT PRIMARY KEY, num_responses INTEGER NOT NULL, num_bytes INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS by_bytes ON tenants (num_bytes, num_responses);
INSERT OR IGNORE INTO tenants
    SELECT tenant, count(*), sum(num_bytes) FROM responses GROUP BY tenant;
CREATE TRIGGER IF NOT EXISTS response_added AFTER INSERT ON responses BEGIN
    INSERT OR IGNORE INTO tenants VALUES (NEW.tenant, 0, 0);
    UPDATE tenants SET num_responses = num_responses + 1, num_bytes = num_bytes + NEW.num_bytes
        WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER IF NOT EXISTS response_changed AFTER UPDATE OF num_bytes ON responses BEGIN
    UPDATE tenants SET num_bytes = num_bytes + NEW.num_bytes - OLD.num_bytes
        WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER IF NOT EXISTS response_deleted AFTER DELETE ON responses BEGIN
    DELETE FROM uses WHERE response = OLD.rowid;
    UPDATE tenants SET num_responses = num_responses - 1, num_bytes = num_bytes - OLD.num_bytes
        WHERE tenant = OLD.tenant;
    DELETE FROM tenants WHERE tenant = OLD.tenant AND num_responses = 0;
END;
CREATE TRIGGER IF NOT EXISTS use_deleted AFTER DELETE ON uses
    WHEN NOT EXISTS (SELECT 1 FROM uses WHERE piece = OLD.piece)
BEGIN
    DELETE FROM pieces WHERE number = OLD.piece;
END;
CREATE TRIGGER IF NOT EXISTS piece_added AFTER INSERT ON pieces BEGIN
    UPDATE tenants SET num_bytes = num_bytes + length(NEW.content) WHERE tenant = NEW.tenant;
END;
CREATE TRIGGER IF NOT EXISTS piece_deleted AFTER DELETE ON pieces BEGIN
    UPDATE tenants SET num_bytes = num_bytes - length(OLD.content) WHERE tenant = OLD.tenant;
END;
COMMIT;
"""
"""Triggers keep the sums of each tenant and remove pieces that no response uses."""


def add(database: sqlite3.Connection, row: StoredRow) -> None:
    """Adds a row with its pieces."""
    marks = ", ".join("?" for _ in COLUMNS)
    sql = f"INSERT INTO responses ({', '.join(COLUMNS)}) VALUES ({marks})"
    database.execute(sql, tuple(getattr(row, name) for name in COLUMNS))
    add_pieces(database, row)


def add_pieces(database: sqlite3.Connection, row: StoredRow) -> None:
    """Adds the pieces of a row that is there."""
    database.executemany(
        "INSERT OR IGNORE INTO pieces (name, tenant, content) VALUES (?, ?, ?)",
        [(piece.name, row.tenant, piece.content) for piece in row.pieces],
    )
    database.executemany(
        "INSERT INTO uses SELECT responses.rowid, ?, pieces.number FROM responses, pieces"
        " WHERE responses.id = ? AND pieces.name = ?",
        [(place, row.id, piece.name) for place, piece in enumerate(row.pieces)],
    )


def rows(database: sqlite3.Connection, condition: str, *values: object) -> list[StoredRow]:
    """Returns the rows that meet a condition, with their pieces."""
    sql = f"SELECT rowid, {', '.join(COLUMNS)} FROM responses WHERE {condition}"
    found = database.execute(sql, values).fetchall()
    return [_row(database, number, dict(zip(COLUMNS, one, strict=True))) for number, *one in found]


def _row(database: sqlite3.Connection, number: int, fields: dict[str, Any]) -> StoredRow:
    sql = (
        "SELECT name, content FROM uses JOIN pieces ON number = piece"
        " WHERE response = ? ORDER BY place"
    )
    pieces = tuple(SharedPiece(*one) for one in database.execute(sql, (number,)))
    del fields["num_bytes"]
    return StoredRow(**fields | {"is_running": bool(fields["is_running"]), "pieces": pieces})


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
    with connection:
        connection.execute("BEGIN IMMEDIATE")
        for row in _rows_of(aside):
            if row is None:
                num_lost += 1
                continue
            num_read += 1
            with contextlib.suppress(sqlite3.IntegrityError):  # it was found twice
                add(connection, row)
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
                (row,) = rows(database, "rowid = ?", number)
                with contextlib.suppress(OtherFormat):
                    StoredResponse.of(row)
                yield row
            except (sqlite3.Error, DamagedResponse, TypeError, ValueError):
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

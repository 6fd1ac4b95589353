"""The tables of an index, what an index belongs to, and the connections to it.

A slot is in one of four tables: `blocks` has a block in it; `free` has space and nothing that
counts; `holes` have no space; `cleared` have a block that nothing finds, until its space is given
back. All slots below `num_slots` of `state` are in one of them. `clears` has the marks of the
clears that have been made, the last of each tenant; an empty name is all tenants. `state` has the
last of each scheduler.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

FORMAT = 2
"""Changes when files of an older version cannot be read."""

_LOG_HEAD_BYTES = 32
LOG_BYTES = 1 << 20
"""Space of the log beside an index, which is moved into the index at half of that."""

_TABLES = """
CREATE TABLE state (name TEXT PRIMARY KEY, value) WITHOUT ROWID;
CREATE TABLE tenants (
  id INTEGER PRIMARY KEY, name BLOB NOT NULL UNIQUE, num_blocks INTEGER NOT NULL
);
CREATE INDEX by_blocks ON tenants (num_blocks);
CREATE TABLE blocks (
  slot INTEGER PRIMARY KEY,
  key BLOB NOT NULL,
  checksum BLOB NOT NULL,
  tenant INTEGER NOT NULL,
  used INTEGER NOT NULL
);
CREATE UNIQUE INDEX by_key ON blocks (key);
CREATE INDEX by_use ON blocks (tenant, used);
CREATE TABLE free (slot INTEGER PRIMARY KEY);
CREATE TABLE holes (slot INTEGER PRIMARY KEY);
CREATE TABLE cleared (slot INTEGER PRIMARY KEY);
CREATE TABLE clears (
  tenant BLOB PRIMARY KEY, issuer BLOB NOT NULL, number INTEGER NOT NULL
) WITHOUT ROWID;
"""

# A commit is written to the log and not synced: with a loss of power the last ones are lost, and no
# older one. What is deleted is overwritten, as keys and names of tenants are hashes of prompts.
_PRAGMAS = (
    "PRAGMA journal_mode = WAL",
    "PRAGMA synchronous = NORMAL",
    "PRAGMA secure_delete = ON",
    f"PRAGMA wal_autocheckpoint = {LOG_BYTES // 8192}",
    f"PRAGMA journal_size_limit = {LOG_BYTES}",
)


class IndexUnusable(Exception):
    """The file is no index, is damaged, or belongs to something else."""


_DAMAGES = (
    sqlite3.SQLITE_CORRUPT,
    sqlite3.SQLITE_NOTADB,
    sqlite3.SQLITE_ERROR,  # other tables
    sqlite3.SQLITE_CONSTRAINT,  # a slot in two of them
    sqlite3.SQLITE_MISMATCH,
)


def is_damage(error: Exception) -> bool:
    """Says whether an error is one of what is in an index, and not of its device: a value that is
    no number, or names that are no text, are a ValueError."""
    code = getattr(error, "sqlite_errorcode", None)
    return type(error) in (ValueError, UnicodeDecodeError) or (
        code is not None and code & 0xFF in _DAMAGES
    )


def connect(path: str) -> sqlite3.Connection:
    """Opens an index that no other process writes to; the caller lets one thread at a time use the
    connection.

    What SQLite else maps as a file, whose cutting ends the process, is in memory with unix-excl.
    """
    uri = f"file:{quote(path)}?vfs=unix-excl"
    connection = sqlite3.connect(
        uri, uri=True, timeout=5.0, isolation_level=None, check_same_thread=False
    )
    try:
        for pragma in _PRAGMAS:
            connection.execute(pragma)
    except BaseException:
        connection.close()
        raise
    return connection


def connect_read_only(path: str) -> sqlite3.Connection:
    """Opens an index that no process writes to; needs no space. What is in a log beside it does
    not count."""
    uri = f"file:{quote(path)}?mode=ro&immutable=1"
    return sqlite3.connect(uri, uri=True, isolation_level=None, check_same_thread=False)


def connect_beside(path: str) -> sqlite3.Connection:
    """Opens an index for reading, with its log, that another process may be writing to.

    It takes no lock: what is read while the log begins anew may be wrong, which `log_head` shows.
    """
    connection = sqlite3.connect(f"file:{quote(path)}?mode=ro&vfs=unix-none", uri=True)
    connection.execute("PRAGMA locking_mode = EXCLUSIVE")  # so that it maps nothing either
    return connection


def log_head(path: Path) -> bytes:
    """Returns what differs whenever the log of an index has begun anew; empty without a log."""
    try:
        with path.with_name(f"{path.name}-wal").open("rb") as log:
            return log.read(_LOG_HEAD_BYTES)
    except FileNotFoundError:
        return b""


def prepare(connection: sqlite3.Connection, *, identity: bytes, block_bytes: int) -> None:
    """Makes the tables of a new index, or checks whose it is. Raises IndexUnusable."""
    whose = _whose(identity, block_bytes)
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            for statement in filter(str.strip, _TABLES.split(";")):
                connection.execute(statement)
            values = whose | {
                "num_slots": 0,
                "used_at": 0,
                "day": 0,
                "written_today": 0,
                "model": "",
            }
            connection.executemany("INSERT INTO state VALUES (?, ?)", values.items())
    except sqlite3.Error:
        connection.execute("ROLLBACK")
        raise
    connection.execute("COMMIT")
    check_owner(connection, identity=identity, block_bytes=block_bytes)


def check_owner(connection: sqlite3.Connection, *, identity: bytes, block_bytes: int) -> None:
    """Raises IndexUnusable if an index belongs to something else."""
    whose = _whose(identity, block_bytes)
    found = dict(connection.execute("SELECT name, value FROM state"))
    differing = [name for name, value in whose.items() if found.get(name) != value]
    if differing:
        raise IndexUnusable(f"its {differing[0]} is another")


def _whose(identity: bytes, block_bytes: int) -> dict[str, object]:
    return {"format": FORMAT, "identity": identity, "block_bytes": block_bytes}


class IndexConnection:
    """A connection that reads and one that writes, each used by one thread at a time.

    A lookup does not wait for a commit, and every change is a transaction. Methods raise
    sqlite3.Error, and ValueError for content that makes no sense; the constructor IndexUnusable,
    too.

    Args:
        is_read_only: what changes the index raises.
    """

    def __init__(
        self, path: Path, *, identity: bytes, block_bytes: int, is_read_only: bool = False
    ) -> None:
        self._writing, self._reading = threading.RLock(), threading.Lock()
        open_one = connect_read_only if is_read_only else connect
        self.writer = open_one(str(path))
        try:
            make_or_check = check_owner if is_read_only else prepare
            make_or_check(self.writer, identity=identity, block_bytes=block_bytes)
            self.reader = open_one(str(path))
        except BaseException:
            self.writer.close()
            raise

    @contextlib.contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits what is done within, or nothing if it raises."""
        with self._writing:
            self.writer.execute("BEGIN IMMEDIATE")
            try:
                yield self.writer
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the error may have rolled it back
                    self.writer.execute("ROLLBACK")
                raise
            self.writer.execute("COMMIT")

    def look_up(self, statement: str, values: Sequence[bytes]) -> list[tuple[Any, ...]]:
        """Returns rows as of the last commit."""
        with self._reading:
            return self.reader.execute(statement, values).fetchall()

    def column(self, statement: str, *values: object) -> list[int]:
        """Returns the only value of each row, those of an unfinished transaction included."""
        with self._writing:
            return [value for (value,) in self.writer.execute(statement, values)]

    def number(self, statement: str, *values: object) -> int | None:
        """Returns the first value of a row; None if there is no row, or it is null."""
        with self._writing:
            row = self.writer.execute(statement, values).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    def text(self, name: str) -> str:
        """Returns an entry of the state; empty if there is none."""
        with self._writing:
            row = self.writer.execute("SELECT value FROM state WHERE name = ?", (name,)).fetchone()
        return row[0] if row else ""

    def state(self, name: str) -> int:
        """Returns an entry of the state; 0 if there is none."""
        return self.number("SELECT value FROM state WHERE name = ?", name) or 0

    def set_state(self, name: str, value: int | str) -> None:
        """Sets an entry of the state, within a transaction."""
        self.writer.execute("INSERT OR REPLACE INTO state VALUES (?, ?)", (name, value))

    def checkpoint(self, *, is_full: bool = False) -> None:
        """Moves what has been committed from the log into the index and syncs it.

        Args:
            is_full: waits for readers, and empties the log.
        """
        mode = "TRUNCATE" if is_full else "PASSIVE"
        with self._writing:
            self.writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def close(self) -> None:
        with self._writing, self._reading:
            self.reader.close()
            self.writer.close()

"""The tables of an index, and what an index belongs to.

A slot is in one of four tables: `blocks` has a block in it; `free` has space and nothing that
counts; `holes` have no space; `cleared` have a block that nothing finds, until its space is given
back. All slots below `num_slots` of `state` are in one of them. `clears` has the marks of the
clears that have been made, the last of each tenant; an empty name is all tenants. `state` has the
last of each scheduler.
"""

import sqlite3
from pathlib import Path
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

"""The connections to an index: one that reads and one that writes.

A lookup does not wait for a commit, and each connection is used by one thread at a time. Every
change is a transaction.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from signalbox_worker.kv_disk.index_schema import check_owner, connect, connect_read_only, prepare


class IndexConnection:
    """Two open connections. Methods raise sqlite3.Error, and ValueError for content that makes no
    sense; the constructor IndexUnusable too.

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

"""The index of a slot file: which block is in which slot, whose it is, and when it was used.

SQLite, with one connection that reads and one that writes: a lookup does not wait for a commit, and
nothing of the index is held in memory but what SQLite caches. Every change is a transaction; that
of a new block comes after the block's bytes.
"""

import contextlib
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from contract.sections.store_moves import ClearMark
from gpu_worker.kv_disk.index_schema import (
    IndexUnusable,
    check_owner,
    connect,
    connect_read_only,
    prepare,
)
from gpu_worker.kv_disk.known_clears import KnownClears

_NUM_KEYS = (1, 15, 240, 256)
"""Keys of the first statements of a lookup; later ones have as many as the last."""
_ALL = b""
"""Name of all tenants, where clears are named."""
_MAX_TOUCHED = 1 << 14
"""Blocks whose use is kept in memory until it is written."""


class StoredBlock(NamedTuple):
    slot: int
    checksum: bytes


class DiskIndex:
    """An open index. Methods raise sqlite3.Error, and ValueError for content that makes no sense;
    the constructor IndexUnusable too.

    Args:
        is_read_only: what changes the index raises.
    """

    def __init__(
        self, path: Path, *, identity: bytes, block_bytes: int, is_read_only: bool = False
    ) -> None:
        self.is_read_only = is_read_only
        self._writing, self._reading = threading.RLock(), threading.Lock()
        open_one = connect_read_only if is_read_only else connect
        self._writer = open_one(str(path))
        try:
            make_or_check = check_owner if is_read_only else prepare
            make_or_check(self._writer, identity=identity, block_bytes=block_bytes)
            self._reader = open_one(str(path))
        except BaseException:
            self._writer.close()
            raise
        self._touched: dict[bytes, int] = {}
        self._touching = threading.Lock()
        self._used_at = int(self._state("used_at"))

    def check(self, *, num_slots: int) -> None:
        """Raises IndexUnusable if more slots are in use than the file has; reads what is read
        first."""
        if self.num_slots > num_slots:
            raise IndexUnusable("the file of blocks is shorter than it says")
        self.num_blocks()
        for name in ("day", "written_today"):
            self._state(name)
        self.cleared()
        self.holes(1)
        self.free_slot()

    # Lookups

    def num_leading(self, keys: Sequence[bytes]) -> int:
        """Returns how many of the first keys are there, and counts them as used."""
        start, sizes = 0, iter(_NUM_KEYS)
        while start < len(keys):
            part = keys[start : start + next(sizes, _NUM_KEYS[-1])]
            found = self._existing(part)
            num_found = next((i for i, key in enumerate(part) if key not in found), len(part))
            start += num_found
            if num_found < len(part):
                break
        self._touch(keys[:start])
        return start

    def _existing(self, keys: Sequence[bytes]) -> set[bytes]:
        marks = ",".join("?" * len(keys))
        with self._reading:
            rows = self._reader.execute(f"SELECT key FROM blocks WHERE key IN ({marks})", keys)
            return {key for (key,) in rows}

    def find(self, key: bytes) -> StoredBlock | None:
        """Returns where a block is; counts it as used."""
        with self._reading:
            row = self._reader.execute(
                "SELECT slot, checksum FROM blocks WHERE key = ?", (key,)
            ).fetchone()
        if row is None:
            return None
        self._touch((key,))
        return StoredBlock(*row)

    def _touch(self, keys: Sequence[bytes]) -> None:
        """Notes a use; of blocks of one prompt the first one is used last, and evicted last."""
        now = self._use(len(keys))
        with self._touching:
            if len(self._touched) + len(keys) <= _MAX_TOUCHED:
                self._touched.update((key, now - i) for i, key in enumerate(keys))

    def _use(self, num_blocks: int) -> int:
        """Returns the time of a use of blocks, in microseconds, and as many after any before.

        Times never go back, whatever the clock does: else blocks that were used before it was set
        back would stay, and new ones go at once.
        """
        with self._touching:
            self._used_at = max(time.time_ns() // 1000, self._used_at + num_blocks)
            return self._used_at

    # Slots

    def free_slot(self) -> int | None:
        """Returns the first slot with space and no block."""
        return self._one("SELECT slot FROM free ORDER BY slot LIMIT 1")

    def holes(self, num_slots: int) -> list[int]:
        """Returns the first slots without space."""
        with self._writing:
            rows = self._writer.execute(
                "SELECT slot FROM holes ORDER BY slot LIMIT ?", (num_slots,)
            )
            return [slot for (slot,) in rows]

    @property
    def num_slots(self) -> int:
        return int(self._state("num_slots"))

    def add_space(self, *, holes: Sequence[int], num_new: int) -> None:
        """Counts slots as free that have been allocated: some holes, and new ones at the end."""
        with self._transaction() as connection:
            first = self.num_slots
            new = [(slot,) for slot in (*holes, *range(first, first + num_new))]
            connection.executemany("DELETE FROM holes WHERE slot = ?", [(s,) for s in holes])
            connection.executemany("INSERT INTO free VALUES (?)", new)
            self._set_state("num_slots", first + num_new)

    def lose_slot(self, slot: int) -> None:
        """Forgets a slot that cannot be written to."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM free WHERE slot = ?", (slot,))

    # Blocks

    def insert(self, slot: int, *, key: bytes, checksum: bytes, tenant: bytes) -> None:
        """Enters a block whose bytes are in a slot that was free."""
        with self._transaction() as connection:
            connection.execute("DELETE FROM free WHERE slot = ?", (slot,))
            connection.execute(
                "INSERT INTO tenants (name, num_blocks) VALUES (?, 1)"
                " ON CONFLICT (name) DO UPDATE SET num_blocks = num_blocks + 1",
                (tenant,),
            )
            connection.execute(
                "INSERT INTO blocks SELECT ?, ?, ?, id, ? FROM tenants WHERE name = ?",
                (slot, key, checksum, self._use(1), tenant),
            )

    def remove(self, key: bytes, slot: int) -> bool:
        """Forgets a block that is damaged; returns False if that slot has it no more."""
        with self._transaction() as connection:
            row = connection.execute(
                "SELECT slot, tenant FROM blocks WHERE key = ? AND slot = ?", (key, slot)
            ).fetchone()
            if row is not None:
                self._free(*row, into="free")
            return row is not None

    def evict(self, tenant: bytes | None = None) -> int | None:
        """Forgets the block used longest ago of the tenant with the most; returns its slot, free.

        So a tenant that has less than its share of the blocks loses none. Of several with the most
        it is the one that came first.

        Args:
            tenant: who needs the slot; it loses one of its own if none has more.
        """
        with self._transaction():
            self._write_touches()
            most = self._one("SELECT max(num_blocks) FROM tenants")
            if most is None:
                return None
            own = "SELECT id FROM tenants WHERE name = ? AND num_blocks = ?"
            first = "SELECT id FROM tenants WHERE num_blocks = ? ORDER BY id LIMIT 1"
            number = self._one(own, tenant, most) or self._one(first, most)
            slot = self._one(
                "SELECT slot FROM blocks WHERE tenant = ? ORDER BY used LIMIT 1", number
            )
            if slot is None or number is None:
                raise ValueError("a tenant with blocks has none")
            self._free(slot, number, into="free")
            return slot

    def _free(self, slot: int, tenant: int, *, into: str) -> None:
        self._writer.execute("DELETE FROM blocks WHERE slot = ?", (slot,))
        self._writer.execute(f"INSERT INTO {into} VALUES (?)", (slot,))
        self._writer.execute(
            "UPDATE tenants SET num_blocks = num_blocks - 1 WHERE id = ?", (tenant,)
        )
        self._writer.execute("DELETE FROM tenants WHERE id = ? AND num_blocks = 0", (tenant,))

    # Giving space back

    def has_made(self, tenant: bytes | None, mark: ClearMark) -> bool:
        """Says whether a clear of a tenant, or all, was made, or a later one that includes it."""
        if mark.catches_up:
            return self._known_clears().has(mark)
        number = self._one(
            "SELECT max(number) FROM clears WHERE issuer = ? AND tenant IN (?, ?)",
            mark.issuer,
            _ALL,
            _ALL if tenant is None else tenant,
        )
        return number is not None and number >= mark.number

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        """Moves the blocks of a tenant, or of all, and free slots with what was evicted, to those
        whose space is to be given back. Returns when that is on the device.

        Args:
            mark: kept for `has_made`; marks of another issuer's tenants are forgotten.
        """
        with self._transaction() as connection:
            with self._touching:
                self._touched.clear()
            where, values = "", [] if tenant is None else [tenant]
            if tenant is not None:
                where = " WHERE tenant = (SELECT id FROM tenants WHERE name = ?)"
            connection.execute(f"INSERT INTO cleared SELECT slot FROM blocks{where}", values)
            connection.execute(f"DELETE FROM blocks{where}", values)
            if tenant is None:
                connection.execute("DELETE FROM tenants")
            else:
                connection.execute("DELETE FROM tenants WHERE name = ?", (tenant,))
            self._clear_free()
            if mark is not None:
                self._keep_mark(_ALL if tenant is None else tenant, mark)
        self.checkpoint(is_full=True)

    def _keep_mark(self, tenant: bytes, mark: ClearMark) -> None:
        known = self._known_clears()
        known.add(mark)
        self._writer.execute("INSERT OR REPLACE INTO state VALUES ('clears', ?)", (known.text,))
        if mark.catches_up:  # later clears of tenants may have been made before
            return
        self._writer.execute(
            "DELETE FROM clears WHERE issuer != ? OR (? AND number < ?)",
            (mark.issuer, tenant == _ALL, mark.number),
        )
        self._writer.execute(
            "INSERT OR REPLACE INTO clears VALUES (?, ?, ?)", (tenant, mark.issuer, mark.number)
        )

    def _known_clears(self) -> KnownClears:
        with self._writing:
            row = self._writer.execute("SELECT value FROM state WHERE name = 'clears'").fetchone()
        return KnownClears(row[0] if row else "")

    def release(self, slots: Sequence[int]) -> None:
        """Moves free slots to those whose space is to be given back."""
        with self._transaction() as connection:
            values = [(slot,) for slot in slots]
            connection.executemany("DELETE FROM free WHERE slot = ?", values)
            connection.executemany("INSERT INTO cleared VALUES (?)", values)

    def _clear_free(self) -> None:
        """Clears free slots too: what was evicted may be the tenant's."""
        self._writer.execute("INSERT INTO cleared SELECT slot FROM free")
        self._writer.execute("DELETE FROM free")

    def cleared(self) -> list[int]:
        """Returns the slots whose space is to be given back, ascending."""
        with self._writing:
            rows = self._writer.execute("SELECT slot FROM cleared ORDER BY slot")
            return [slot for (slot,) in rows]

    def make_holes(self) -> None:
        """Counts the slots of `cleared` as holes: their space has been given back."""
        with self._transaction() as connection:
            connection.execute("INSERT INTO holes SELECT slot FROM cleared")
            connection.execute("DELETE FROM cleared")

    # State

    def num_blocks(self) -> int:
        """Returns the number of blocks of all tenants."""
        return self._one("SELECT sum(num_blocks) FROM tenants") or 0

    def written_on(self, day: int) -> int:
        """Returns the bytes that were written on a day, counted since the epoch."""
        return int(self._state("written_today")) if self._state("day") == day else 0

    def set_written(self, day: int, num_bytes: int) -> None:
        with self._transaction():
            self._set_state("day", day)
            self._set_state("written_today", num_bytes)

    def set_model(self, name: str) -> None:
        """Notes the name of the model, for listings of the folder."""
        with self._transaction():
            self._set_state("model", name)

    def write_touches(self) -> None:
        """Writes when blocks were used last."""
        with self._transaction():
            self._write_touches()

    def checkpoint(self, *, is_full: bool = False) -> None:
        """Moves what has been committed from the log into the index and syncs it.

        Args:
            is_full: waits for readers, and empties the log.
        """
        mode = "TRUNCATE" if is_full else "PASSIVE"
        with self._writing:
            self._writer.execute(f"PRAGMA wal_checkpoint({mode})").fetchall()

    def close(self) -> None:
        with self._writing, self._reading:
            self._reader.close()
            self._writer.close()

    def _write_touches(self) -> None:
        with self._touching:
            touched, self._touched = self._touched, {}
        self._writer.executemany(
            "UPDATE blocks SET used = ? WHERE key = ?",
            [(used, key) for key, used in touched.items()],
        )
        self._set_state("used_at", self._used_at)

    def _state(self, name: str) -> int:
        value = self._one("SELECT value FROM state WHERE name = ?", name)
        return 0 if value is None else value

    def _set_state(self, name: str, value: int | str) -> None:
        self._writer.execute("UPDATE state SET value = ? WHERE name = ?", (value, name))

    def _one(self, statement: str, *values: object) -> int | None:
        with self._writing:
            row = self._writer.execute(statement, values).fetchone()
        return None if row is None or row[0] is None else int(row[0])

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """Commits what is done within, or nothing if it raises."""
        with self._writing:
            self._writer.execute("BEGIN IMMEDIATE")
            try:
                yield self._writer
            except BaseException:
                with contextlib.suppress(sqlite3.Error):  # the error may have rolled it back
                    self._writer.execute("ROLLBACK")
                raise
            self._writer.execute("COMMIT")

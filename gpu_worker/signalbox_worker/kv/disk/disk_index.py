"""The index of a slot file: which block is in which slot, whose it is, and when it was used.

Nothing of the index is held in memory but what SQLite caches, and uses that are not written yet.
The transaction of a new block comes after the block's bytes.
"""

import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.disk.clear_marks import ClearMarks
from signalbox_worker.kv.disk.index_schema import IndexConnection, IndexUnusable

_NUM_KEYS = (1, 15, 240, 256)
"""Keys of the first statements of a lookup; later ones have as many as the last."""


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
        self._connection = IndexConnection(
            path, identity=identity, block_bytes=block_bytes, is_read_only=is_read_only
        )
        self._uses = BlockUses(self._connection)
        self._marks = ClearMarks(self._connection)

    def check(self, *, num_slots: int) -> None:
        """Raises IndexUnusable if more slots are in use than the file has; reads what is read
        first."""
        if self.num_slots > num_slots:
            raise IndexUnusable("the file of blocks is shorter than it says")
        self.num_blocks()
        for name in ("day", "written_today"):
            self._connection.state(name)
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
        self._uses.add(keys[:start])
        return start

    def _existing(self, keys: Sequence[bytes]) -> set[bytes]:
        marks = ",".join("?" * len(keys))
        rows = self._connection.look_up(f"SELECT key FROM blocks WHERE key IN ({marks})", keys)
        return {key for (key,) in rows}

    def find(self, key: bytes) -> StoredBlock | None:
        """Returns where a block is; counts it as used."""
        statement = "SELECT slot, checksum FROM blocks WHERE key = ?"
        for slot, checksum in self._connection.look_up(statement, (key,)):
            self._uses.add((key,))
            return StoredBlock(slot, checksum)
        return None

    # Slots

    def free_slot(self) -> int | None:
        """Returns the first slot with space and no block."""
        return self._connection.number("SELECT slot FROM free ORDER BY slot LIMIT 1")

    def holes(self, num_slots: int) -> list[int]:
        """Returns the first slots without space."""
        statement = "SELECT slot FROM holes ORDER BY slot LIMIT ?"
        return self._connection.column(statement, num_slots)

    @property
    def num_slots(self) -> int:
        return self._connection.state("num_slots")

    def add_space(self, *, holes: Sequence[int], num_new: int) -> None:
        """Counts slots as free that have been allocated: some holes, and new ones at the end."""
        with self._connection.transaction() as connection:
            first = self.num_slots
            new = [(slot,) for slot in (*holes, *range(first, first + num_new))]
            connection.executemany("DELETE FROM holes WHERE slot = ?", [(s,) for s in holes])
            connection.executemany("INSERT INTO free VALUES (?)", new)
            self._connection.set_state("num_slots", first + num_new)

    def lose_slot(self, slot: int) -> None:
        """Forgets a slot that cannot be written to."""
        with self._connection.transaction() as connection:
            connection.execute("DELETE FROM free WHERE slot = ?", (slot,))

    # Blocks

    def insert(self, slot: int, *, key: bytes, checksum: bytes, tenant: bytes) -> None:
        """Enters a block whose bytes are in a slot that was free."""
        with self._connection.transaction() as connection:
            connection.execute("DELETE FROM free WHERE slot = ?", (slot,))
            connection.execute(
                "INSERT INTO tenants (name, num_blocks) VALUES (?, 1)"
                " ON CONFLICT (name) DO UPDATE SET num_blocks = num_blocks + 1",
                (tenant,),
            )
            connection.execute(
                "INSERT INTO blocks SELECT ?, ?, ?, id, ? FROM tenants WHERE name = ?",
                (slot, key, checksum, self._uses.next_time(1), tenant),
            )

    def remove(self, key: bytes, slot: int) -> bool:
        """Forgets a block that is damaged; returns False if that slot has it no more."""
        with self._connection.transaction() as connection:
            row = connection.execute(
                "SELECT slot, tenant FROM blocks WHERE key = ? AND slot = ?", (key, slot)
            ).fetchone()
            if row is not None:
                self._free(*row)
            return row is not None

    def evict(self, tenant: bytes | None = None) -> int | None:
        """Forgets the block used longest ago of the tenant with the most; returns its slot, free.

        So a tenant that has less than its share of the blocks loses none. Of several with the most
        it is the one that came first.

        Args:
            tenant: who needs the slot; it loses one of its own if none has more.
        """
        with self._connection.transaction():
            self._uses.write()
            one = self._connection.number
            most = one("SELECT max(num_blocks) FROM tenants")
            if most is None:
                return None
            own = "SELECT id FROM tenants WHERE name = ? AND num_blocks = ?"
            first = "SELECT id FROM tenants WHERE num_blocks = ? ORDER BY id LIMIT 1"
            number = one(own, tenant, most) or one(first, most)
            slot = one("SELECT slot FROM blocks WHERE tenant = ? ORDER BY used LIMIT 1", number)
            if slot is None or number is None:
                raise ValueError("a tenant with blocks has none")
            self._free(slot, number)
            return slot

    def _free(self, slot: int, tenant: int) -> None:
        writer = self._connection.writer
        writer.execute("DELETE FROM blocks WHERE slot = ?", (slot,))
        writer.execute("INSERT INTO free VALUES (?)", (slot,))
        writer.execute("UPDATE tenants SET num_blocks = num_blocks - 1 WHERE id = ?", (tenant,))
        writer.execute("DELETE FROM tenants WHERE id = ? AND num_blocks = 0", (tenant,))

    # Giving space back

    def has_made(self, tenant: bytes | None, mark: ClearMark) -> bool:
        """Says whether a clear of a tenant, or all, was made, or a later one that includes it."""
        return self._marks.has(tenant, mark)

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        """Moves the blocks of a tenant, or of all, and free slots with what was evicted, to those
        whose space is to be given back. Returns when that is on the device.

        Args:
            mark: kept for `has_made`; marks of another issuer's tenants are forgotten.
        """
        with self._connection.transaction() as connection:
            self._uses.forget()
            where, values = "", [] if tenant is None else [tenant]
            if tenant is not None:
                where = " WHERE tenant = (SELECT id FROM tenants WHERE name = ?)"
            connection.execute(f"INSERT INTO cleared SELECT slot FROM blocks{where}", values)
            connection.execute(f"DELETE FROM blocks{where}", values)
            if tenant is None:
                connection.execute("DELETE FROM tenants")
            else:
                connection.execute("DELETE FROM tenants WHERE name = ?", (tenant,))
            # Free slots too: what was evicted may be the tenant's.
            connection.execute("INSERT INTO cleared SELECT slot FROM free")
            connection.execute("DELETE FROM free")
            if mark is not None:
                self._marks.add(tenant, mark)
        self._connection.checkpoint(is_full=True)

    def release(self, slots: Sequence[int]) -> None:
        """Moves free slots to those whose space is to be given back."""
        with self._connection.transaction() as connection:
            values = [(slot,) for slot in slots]
            connection.executemany("DELETE FROM free WHERE slot = ?", values)
            connection.executemany("INSERT INTO cleared VALUES (?)", values)

    def cleared(self) -> list[int]:
        """Returns the slots whose space is to be given back, ascending."""
        return self._connection.column("SELECT slot FROM cleared ORDER BY slot")

    def make_holes(self) -> None:
        """Counts the slots of `cleared` as holes: their space has been given back."""
        with self._connection.transaction() as connection:
            connection.execute("INSERT INTO holes SELECT slot FROM cleared")
            connection.execute("DELETE FROM cleared")

    # State

    def num_blocks(self) -> int:
        """Returns the number of blocks of all tenants."""
        return self._connection.number("SELECT sum(num_blocks) FROM tenants") or 0

    def written_on(self, day: int) -> int:
        """Returns the bytes that were written on a day, counted since the epoch."""
        state = self._connection.state
        return state("written_today") if state("day") == day else 0

    def set_written(self, day: int, num_bytes: int) -> None:
        with self._connection.transaction():
            self._connection.set_state("day", day)
            self._connection.set_state("written_today", num_bytes)

    def set_model(self, name: str) -> None:
        """Notes the name of the model, for listings of the folder."""
        with self._connection.transaction():
            self._connection.set_state("model", name)

    def write_touches(self) -> None:
        """Writes when blocks were used last."""
        with self._connection.transaction():
            self._uses.write()

    def checkpoint(self) -> None:
        """Moves what has been committed from the log into the index and syncs it."""
        self._connection.checkpoint()

    def close(self) -> None:
        self._connection.close()


_MAX_UNWRITTEN = 1 << 14
"""Blocks whose use is kept in memory until it is written."""


class BlockUses:
    """The uses of an index's blocks since they were written last."""

    def __init__(self, connection: IndexConnection) -> None:
        self._connection = connection
        self._unwritten: dict[bytes, int] = {}
        self._lock = threading.Lock()
        self._used_at = connection.state("used_at")

    def add(self, keys: Sequence[bytes]) -> None:
        """Notes a use; of blocks of one prompt the first one is used last, and evicted last."""
        now = self.next_time(len(keys))
        with self._lock:
            if len(self._unwritten) + len(keys) <= _MAX_UNWRITTEN:
                self._unwritten.update((key, now - i) for i, key in enumerate(keys))

    def next_time(self, num_blocks: int) -> int:
        """Returns the time of a use of blocks, in microseconds, and as many after any before.

        Times never go back, whatever the clock does: else blocks that were used before it was set
        back would stay, and new ones go at once.
        """
        with self._lock:
            self._used_at = max(time.time_ns() // 1000, self._used_at + num_blocks)
            return self._used_at

    def forget(self) -> None:
        """Drops the uses that are not written."""
        with self._lock:
            self._unwritten.clear()

    def write(self) -> None:
        """Writes the uses, within a transaction."""
        with self._lock:
            unwritten, self._unwritten = self._unwritten, {}
        self._connection.writer.executemany(
            "UPDATE blocks SET used = ? WHERE key = ?",
            [(used, key) for key, used in unwritten.items()],
        )
        self._connection.set_state("used_at", self._used_at)

"""Notes when blocks were used last, for the eviction of those that were used longest ago.

A use is kept in memory until it is written with many others.
"""

import threading
import time
from collections.abc import Sequence

from signalbox_worker.kv_disk.index_connection import IndexConnection

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

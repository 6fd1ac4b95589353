"""Space of a worker's slot file, under the quota of a folder that others may use too.

Space comes in pieces. One is taken while the folder's lock is held and all files together stay
within the quota; files of no process make room, the oldest first. Where several workers have files,
each may have an equal share: the ones with more give pieces back until one is free, so that those
with less find it.
"""

import logging
import time
from collections.abc import Callable

from signalbox_worker.kv.disk.disk_index import DiskIndex
from signalbox_worker.kv.disk.index_schema import LOG_BYTES
from signalbox_worker.kv.disk.slot_file import SlotFile
from signalbox_worker.kv.disk.store_folder import StoreFolder

SECONDS_PER_DAY = 86400


class WriteLimit:
    """Bounds what is written to a disk in a day, since flash wears out.

    The scheduler bounds what is written in a second; see `StoreCapacity.max_write_bytes_per_s`.
    Used by one thread at a time.

    Args:
        bytes_per_day: what may be written in a day of UTC.
        clock: seconds since the epoch.
    """

    def __init__(self, *, bytes_per_day: float, clock: Callable[[], float] = time.time) -> None:
        self._bytes_per_day = bytes_per_day
        self._clock = clock
        self.day = int(clock() // SECONDS_PER_DAY)
        self.written_today = 0

    def continue_day(self, num_bytes: int) -> None:
        """Counts what was written on this day before."""
        self.written_today += num_bytes

    def take(self, num_bytes: int) -> bool:
        """Counts bytes that are to be written; returns False if they may not be."""
        if (day := int(self._clock() // SECONDS_PER_DAY)) != self.day:
            self.day, self.written_today = day, 0
        if self.written_today + num_bytes > self._bytes_per_day:
            return False
        self.written_today += num_bytes
        return True


logger = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20
MAX_RELEASED = 64
"""Slots that are given back at a time: a write waits meanwhile."""


class DiskSpace:
    """Grows and shrinks a slot file. Methods raise OSError and sqlite3.Error.

    Args:
        name: of the pair of files.
        quota_bytes: of all files in the folder.
    """

    def __init__(
        self,
        folder: StoreFolder,
        name: str,
        *,
        slots: SlotFile,
        quota_bytes: int,
        piece_bytes: int = PIECE_BYTES,
    ) -> None:
        self._folder, self._name = folder, name
        self._slots = slots
        self.quota_bytes = quota_bytes
        self._num_slots = max(1, piece_bytes // slots.slot_bytes)
        self._said_full = False

    @property
    def _piece_bytes(self) -> int:
        return self._num_slots * self._slots.slot_bytes

    def grow(self, index: DiskIndex) -> bool:
        """Adds a piece of free slots; returns False if there is no space for it."""
        with self._folder.locked():
            if not self._make_room():
                return False
            holes, first = index.holes(self._num_slots), index.num_slots
            num_new = self._num_slots - len(holes)
            try:
                self._folder.check_free(self._piece_bytes + LOG_BYTES)  # the index's log needs some
                for slot in holes:
                    self._slots.allocate(slot, 1)
                if num_new:
                    self._slots.allocate(first, num_new)
            except OSError as error:  # ENOSPC above all: what there is must do
                if not self._said_full:
                    self._said_full = True
                    logger.warning(
                        "the disk tier cannot take more space, and keeps what it has: %s",
                        error.strerror,
                    )
                return False
            index.add_space(holes=holes, num_new=num_new)
        return True

    def _make_room(self) -> bool:
        """Deletes files of no process until a piece fits; returns whether one does."""
        files = self._folder.files()
        used = sum(one.num_bytes for one in files)
        for one in files:
            if used + self._piece_bytes <= self.quota_bytes:
                return True
            if not one.is_owned and self._folder.delete(one.name):
                used -= one.num_bytes
                logger.info("deleted %s, KV blocks of no worker, for space", one.name)
        return used + self._piece_bytes <= self.quota_bytes

    def give_way(self, index: DiskIndex) -> tuple[int, bool]:
        """Gives some space back that is beyond this worker's share, as far as a piece must be free.

        Returns the number of evicted blocks, and whether there is more to give back.
        """
        num_slots = self._num_surplus()
        if num_slots <= 0:
            return 0, False
        num_evicted = self._release(index, min(num_slots, MAX_RELEASED))
        return num_evicted, 0 < self._num_surplus() < num_slots

    def _num_surplus(self) -> int:
        """Returns how many slots this worker should give back."""
        with self._folder.locked():
            files = self._folder.files()
        owners = [one for one in files if one.is_owned]
        used, own = sum(one.num_bytes for one in files), self._folder.num_bytes(self._name)
        needed = used - self.quota_bytes
        if len(owners) > 1 and not any(not one.is_owned for one in files):
            needed += self._piece_bytes
        surplus = own - self.quota_bytes // max(1, len(owners))
        return -(-min(needed, surplus) // self._slots.slot_bytes)

    def _release(self, index: DiskIndex, num_slots: int) -> int:
        released: list[int] = []
        num_evicted = 0
        while len(released) < num_slots:
            if (slot := index.free_slot()) is None:
                if (slot := index.evict()) is None:
                    break
                num_evicted += 1
            index.release([slot])
            released.append(slot)
        self.give_back(index)
        return num_evicted

    def give_back(self, index: DiskIndex) -> None:
        """Gives the space of cleared slots back; it is gone from the device on return. Does nothing
        if it could not be noted in the index."""
        if (cleared := index.cleared()) and not index.is_read_only:
            self._slots.punch(cleared)
            self._slots.sync()
            index.make_holes()

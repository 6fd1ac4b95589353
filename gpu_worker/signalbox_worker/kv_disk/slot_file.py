"""A file of slots of one size, each of which holds a block's bytes, and nothing else.

What a slot holds is the index's business. A slot has space on the device (it was allocated) or is a
hole. Slots begin at pages, so that a block is read and written in whole pages.
"""

import contextlib
import mmap
import os
from collections.abc import Iterable

from signalbox_worker.kv_disk.file_calls import SYSTEM, FileCalls


class SlotFile:
    """Slots of an open file, which this object closes. Methods raise OSError.

    Safe from several threads, as far as they use different slots.
    """

    def __init__(self, fd: int, *, block_bytes: int, calls: FileCalls = SYSTEM) -> None:
        self._fd = fd
        self.block_bytes = block_bytes
        self.slot_bytes = -(-block_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        self._calls = calls
        # Blocks are read whole, and not one after another.
        with contextlib.suppress(OSError):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)

    @property
    def num_slots(self) -> int:
        """Slots in the file, holes included."""
        return os.fstat(self._fd).st_size // self.slot_bytes

    def read(self, slot: int, into: memoryview) -> bool:
        """Reads a block; returns False if the file ends before."""
        num_read = 0
        while num_read < self.block_bytes:
            offset = slot * self.slot_bytes + num_read
            count = self._calls.read(self._fd, into[num_read : self.block_bytes], offset)
            if not count:
                return False
            num_read += count
        return True

    def write(self, slot: int, data: memoryview) -> None:
        num_written = 0
        while num_written < self.block_bytes:
            offset = slot * self.slot_bytes + num_written
            count = self._calls.write(self._fd, data[num_written : self.block_bytes], offset)
            if not count:
                raise OSError("nothing was written")
            num_written += count

    def allocate(self, first: int, num_slots: int) -> None:
        """Reserves space for slots; where that fails, the file ends at `first` again if it did."""
        size = os.fstat(self._fd).st_size
        try:
            self._calls.allocate(self._fd, first * self.slot_bytes, num_slots * self.slot_bytes)
        except OSError:
            self._calls.truncate(self._fd, size)
            raise

    def punch(self, slots: Iterable[int]) -> None:
        """Gives the space of slots, in ascending order, back."""
        for first, num_slots in _runs(slots):
            self._calls.punch(self._fd, first * self.slot_bytes, num_slots * self.slot_bytes)

    def shorten(self, num_slots: int) -> None:
        """Gives the space of all slots but the first back."""
        self._calls.truncate(self._fd, num_slots * self.slot_bytes)

    def sync(self) -> None:
        """Waits until what was written is on the device."""
        self._calls.sync(self._fd)

    def close(self) -> None:
        """Closes the file, and ends the lock on it."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _runs(slots: Iterable[int]) -> Iterable[tuple[int, int]]:
    """Yields the first and the number of each run of consecutive slots."""
    first = num_slots = 0
    for slot in slots:
        if num_slots and slot == first + num_slots:
            num_slots += 1
            continue
        if num_slots:
            yield first, num_slots
        first, num_slots = slot, 1
    if num_slots:
        yield first, num_slots

"""A file of slots of one size, each of which holds a block's bytes, and nothing else.

What a slot holds is the index's business. A slot has space on the device (it was allocated) or is a
hole. Slots begin at pages, so that a block is read and written in whole pages.
"""

import contextlib
import ctypes
import errno
import mmap
import os
from collections.abc import Iterable
from functools import cache

_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_ZEROES_BYTES = 1 << 20


class FileCalls:
    """System calls of a slot file. Every method raises OSError."""

    def read(self, fd: int, into: memoryview, offset: int) -> int:
        """Returns the number of bytes read, which may be less than asked for; 0 at the end."""
        return os.preadv(fd, [into], offset)

    def write(self, fd: int, data: memoryview, offset: int) -> int:
        """Returns the number of bytes written, which may be less than asked for."""
        return os.pwrite(fd, data, offset)

    def allocate(self, fd: int, offset: int, num_bytes: int) -> None:
        """Reserves space, so that later writes there do not lack any."""
        os.posix_fallocate(fd, offset, num_bytes)

    def punch(self, fd: int, offset: int, num_bytes: int) -> None:
        """Gives space back; zeroes are read there afterwards."""
        mode = _KEEP_SIZE | _PUNCH_HOLE
        if not _fallocate()(fd, mode, ctypes.c_int64(offset), ctypes.c_int64(num_bytes)):
            return
        number = ctypes.get_errno()
        if number != errno.EOPNOTSUPP:
            raise OSError(number, os.strerror(number))
        zeroes = memoryview(bytes(min(num_bytes, _ZEROES_BYTES)))
        for at in range(offset, offset + num_bytes, _ZEROES_BYTES):
            self.write(fd, zeroes[: offset + num_bytes - at], at)

    def truncate(self, fd: int, num_bytes: int) -> None:
        os.ftruncate(fd, num_bytes)

    def sync(self, fd: int) -> None:
        """Waits until what was written is on the device."""
        os.fdatasync(fd)


SYSTEM = FileCalls()


@cache
def _fallocate() -> "ctypes._NamedFuncPointer":
    function = ctypes.CDLL(None, use_errno=True).fallocate
    function.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    return function


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

"""Calls to the system on the file of slots; tests replace them by ones that fail."""

import ctypes
import errno
import os
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

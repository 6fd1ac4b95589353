"""Tensor-parallel ranks of one machine, which exchange rows through memory that all of them map.

csrc/program/group.h describes the exchange. `signalbox_kernels.program` sums in it.
"""

import ctypes
import mmap
import os

from signalbox_kernels.native import library

_PAGE = 4096


class CalledOff(Exception):
    """The ranks of a group were called off, so that none waits for another one."""


class Group:
    """One rank's view of the memory. Everything but `call_off` is for one thread."""

    _handle: int | None = None

    def __init__(self, file: int, *, rank: int, size: int, slot_bytes: int) -> None:
        """Maps the memory.

        Args:
            file: descriptor of `group_bytes` zeros, which the group closes at its end.
            size: number of ranks.
            slot_bytes: most bytes that a rank gives at once.
        """
        self._file = file
        self._memory = mmap.mmap(file, group_bytes(size, slot_bytes))
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self.rank, self.size = rank, size
        self._handle = library().sb_group_new(address, rank, size, _whole_pages(slot_bytes))

    @property
    def handle(self) -> int:
        """The native object, for programs."""
        assert self._handle is not None
        return self._handle

    @property
    def num_joined(self) -> int:
        """Number of exchanges that this rank has joined, modulo 2^32."""
        return int(library().sb_group_joined(self.handle))

    @property
    def waited_ns(self) -> int:
        """Nanoseconds that this rank has waited for the others; read it between steps."""
        return int(library().sb_group_waited_ns(self.handle))

    def call_off(self) -> None:
        """Makes every step that waits for a rank, now or later, raise CalledOff; on any thread."""
        library().sb_group_call_off(self.handle)

    def __del__(self) -> None:
        os.close(self._file)
        if self._handle:
            library().sb_group_free(self._handle)


def group_bytes(size: int, slot_bytes: int) -> int:
    """Returns the bytes of the memory of `size` ranks."""
    return int(library().sb_group_bytes(size, _whole_pages(slot_bytes)))


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // _PAGE) * _PAGE

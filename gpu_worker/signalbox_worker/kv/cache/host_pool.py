"""Owns the RAM that blocks are swapped out to: whole pages, near the device, pinned for it.

Each page is pinned where it is, so the pool takes what it is as large as. On a machine with several
NUMA nodes the pages are asked for on the device's own (mbind(2), MPOL_PREFERRED), since a copy from
another node shares the link between the processors. On a CPU nothing is pinned, and no page is
taken before it is written to.
"""

import contextlib
import ctypes
import logging
import mmap
import os
import platform
from pathlib import Path

import numpy as np
import torch

from signalbox_kernels import pages
from signalbox_worker.device.streams import Streams

logger = logging.getLogger(__name__)

_NODES = Path("/sys/devices/system/node")
_MBIND = {"x86_64": 237, "aarch64": 235}
_MPOL_PREFERRED = 1  # not MPOL_BIND: a full node would be an out-of-memory kill


class SwapMemory:
    """A zeroed pool, [num_blocks, block_bytes] uint8."""

    def __init__(self, *, num_blocks: int, block_bytes: int, streams: Streams) -> None:
        self._streams = streams
        self._pinned_address: int | None = None
        if not num_blocks:
            self.pool = torch.zeros(0, block_bytes, dtype=torch.uint8)
            return
        self._pages = pages.map_pages(_whole_pages(num_blocks * block_bytes))
        bytes_of_blocks = torch.frombuffer(
            self._pages, dtype=torch.uint8, count=num_blocks * block_bytes
        )
        self.pool = bytes_of_blocks.view(num_blocks, block_bytes)
        self._place()

    def _place(self) -> None:
        """Sets the node of the pages; no page may have been written, as that fixes its node."""
        address, num_bytes = self.pool.data_ptr(), len(self._pages)
        node = self._streams.numa_node()
        if node is not None and num_nodes() > 1:
            prefer_node(node, address=address, num_bytes=num_bytes)
        # A page of 2 MiB is pinned as fast as one of 4 KiB, where the system has such pages.
        with contextlib.suppress(AttributeError, OSError):
            self._pages.madvise(mmap.MADV_HUGEPAGE)
        self._streams.pin(address, num_bytes)
        self._pinned_address = address

    def close(self) -> None:
        """Ends the pinning; no copy may be under way. May be called again."""
        if self._pinned_address is not None:
            self._streams.unpin(self._pinned_address)
            self._pinned_address = None


def pinnable_bytes(wanted: int, streams: Streams) -> int:
    """Returns how much can be pinned now: all that is wanted, a half, a quarter, ..., or 0."""
    while wanted >= mmap.PAGESIZE:
        with contextlib.suppress(MemoryError):
            SwapMemory(num_blocks=1, block_bytes=wanted, streams=streams).close()
            return wanted
        wanted //= 2
    return 0


def num_nodes(nodes: Path = _NODES) -> int:
    """Returns how many NUMA nodes this machine has; 1 where Linux does not say."""
    return max(1, len(list(nodes.glob("node[0-9]*"))))


def prefer_node(node: int, *, address: int, num_bytes: int) -> bool:
    """Asks for pages on one node, as far as it has any; returns whether the system accepts that."""
    number = _MBIND.get(platform.machine())
    if number is None:
        return False
    mask = np.zeros(node // 64 + 1, dtype=np.uint64)
    mask[node // 64] = np.uint64(1) << np.uint64(node % 64)
    libc = ctypes.CDLL(None, use_errno=True)
    failed = libc.syscall(
        ctypes.c_long(number),
        ctypes.c_void_p(address),
        ctypes.c_ulong(num_bytes),
        ctypes.c_ulong(_MPOL_PREFERRED),
        mask.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_ulong(64 * len(mask) + 1),  # the kernel reads one bit less than it is told
        ctypes.c_ulong(0),
    )
    if failed:  # a container may not be allowed to: copies are slower, and right
        reason = os.strerror(ctypes.get_errno())
        logger.warning("swap memory is not bound to NUMA node %d: %s", node, reason)
    return not failed


def _whole_pages(num_bytes: int) -> int:
    return -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE

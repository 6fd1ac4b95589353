"""Takes the RAM of a KV pool before steps need it, a little at a time, while no step is there.

The first write to a page makes the system find and clear it: two MiB take 0.2 ms, and several where
a virtual machine must ask its host. Other servers pay for the whole pool when they start; this way
no request waits for it.
"""

import time

from torch import Tensor

from gpu_worker.device.ram import available_ram
from signalbox_kernels.pages import populate

CHUNK_BYTES = 2 << 20  # a huge page, where there are some
CHORE_S = 0.01
RESERVE_BYTES = 2 << 30
"""Bytes of free RAM that are left to other processes."""


class PoolPages:
    """Prefaulted pages of a pool, [num_blocks, block_bytes]; the scheduler fills it in order."""

    def __init__(self, pool: Tensor) -> None:
        self._pool = pool
        self._done = 0

    def prefault(self) -> bool:
        """Prefaults for some milliseconds; returns whether there is more to do.

        The rest is left alone where RAM is short, or the system has no means for it.
        """
        missing = self._pool.nbytes - self._done
        if missing <= 0 or available_ram() < missing + RESERVE_BYTES:
            return False
        until = time.monotonic() + CHORE_S
        while self._done < self._pool.nbytes and time.monotonic() < until:
            end = min(self._done + CHUNK_BYTES, self._pool.nbytes)
            if not populate(self._pool, start=self._done, end=end):
                return False
            self._done = end
        return True

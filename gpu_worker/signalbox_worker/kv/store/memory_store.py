"""A store in RAM: that of the simulated worker, and what tests compare other stores with."""

import threading
from collections import OrderedDict
from collections.abc import Sequence

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_worker.kv.store.block_store import StoreUsage


class MemoryStore:
    """Implements `BlockStore`; the block that was used longest ago makes room."""

    def __init__(self, *, block_bytes: int, num_blocks: int) -> None:
        self._block_bytes = block_bytes
        self._num_blocks = num_blocks
        self._blocks: OrderedDict[bytes, tuple[bytes, bytes]] = OrderedDict()
        """Bytes and tenant by key, used longest ago first."""
        self._lock = threading.Lock()
        self._num_evicted = 0

    @property
    def block_bytes(self) -> int:
        return self._block_bytes

    @property
    def is_open(self) -> bool:
        return True

    def find(self, keys: Sequence[bytes]) -> int:
        with self._lock:
            for index, key in enumerate(keys):
                if key not in self._blocks:
                    return index
        return len(keys)

    def read(self, key: bytes, into: memoryview) -> bool:
        with self._lock:
            if key not in self._blocks:
                return False
            self._blocks.move_to_end(key)
            into[:] = self._blocks[key][0]
        return True

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        with self._lock:
            if not self._num_blocks:
                return False
            self._blocks[key] = bytes(data), tenant
            self._blocks.move_to_end(key)
            while len(self._blocks) > self._num_blocks:
                self._blocks.popitem(last=False)
                self._num_evicted += 1
        return True

    def remove(self, key: bytes) -> None:
        with self._lock:
            self._blocks.pop(key, None)

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        with self._lock:
            for key in [k for k, (_, whose) in self._blocks.items() if tenant in (None, whose)]:
                del self._blocks[key]

    def usage(self) -> StoreUsage:
        with self._lock:
            num_blocks, size = len(self._blocks), self._block_bytes
        return StoreUsage(num_blocks, num_blocks * size, self._num_blocks * size, self._num_evicted)

    def close(self) -> None:
        """Keeps the blocks for the next worker, as a device does."""

"""The interface of stores of KV blocks beyond a worker's pools.

A store may lose any block at any time, and never returns wrong bytes: `read` has verified what it
returns. A block is named by its chain hash, which covers its tokens and all before them, tenant,
cache salt and adapter; the store adds what the worker computes with. So whatever goes wrong in a
store is a miss, and the scheduler has the tokens computed.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from signalbox_contract.sections.store_moves import ClearMark
from signalbox_rpc.metrics.sample import Sample, counter, gauge


class StoreUsage(NamedTuple):
    """Size of a store, and its work since the worker began."""

    num_blocks: int
    """Blocks that this worker can find."""
    used_bytes: int
    capacity_bytes: int
    num_evicted: int = 0
    num_failed: int = 0
    """Reads and writes that failed: errors of the device, bytes that are not what was written."""
    is_open: bool = True
    """False while nothing is found or kept yet."""
    clears: tuple[ClearMark, ...] = ()
    """See StoreCapacity."""

    def samples(self) -> Iterator[Sample]:
        yield gauge(
            "worker_kv_store_open",
            "1 once the worker's store finds and keeps blocks.",
            self.is_open,
        )
        yield gauge("worker_kv_store_blocks", "KV blocks in the worker's store.", self.num_blocks)
        yield gauge("worker_kv_store_bytes", "Space that the store's blocks take.", self.used_bytes)
        yield gauge(
            "worker_kv_store_capacity_bytes",
            "Space that the store may take; 0 if a server has no limit, or reports none.",
            self.capacity_bytes,
        )
        yield counter(
            "worker_kv_store_evictions",
            "Blocks of the store that made room for others.",
            self.num_evicted,
        )
        yield counter(
            "worker_kv_store_errors",
            "Errors of the store's device, and blocks that are not what was written.",
            self.num_failed,
        )


class StoreError(Exception):
    """A store cannot do what was asked; the text is for operators."""


class BlockStore(Protocol):
    """Blocks of `block_bytes` bytes by key; safe from several threads.

    Calls may wait for a device. None of them may be made from the thread that computes steps.
    """

    @property
    def block_bytes(self) -> int: ...

    @property
    def is_open(self) -> bool:
        """False of a store that has found and kept nothing so far, and may do so later."""
        ...

    def find(self, keys: Sequence[bytes]) -> int:
        """Returns how many of the first keys are there. Raises StoreError."""
        ...

    def read(self, key: bytes, into: memoryview) -> bool:
        """Copies a block; returns False, with anything in `into`, if there is no intact one.

        Raises StoreError.
        """
        ...

    def write(self, key: bytes, data: memoryview, tenant: bytes) -> bool:
        """Keeps a copy of a block; returns False if it is not kept. Raises StoreError.

        Args:
            tenant: whose share of the store it counts against.
        """
        ...

    def remove(self, key: bytes) -> None:
        """Removes a block if it is there. Raises StoreError."""
        ...

    def clear(self, tenant: bytes | None, mark: ClearMark | None = None) -> None:
        """Removes the blocks of a tenant, or all; they are gone from the device, too.

        Raises StoreError.

        Args:
            mark: a store that outlives workers may keep it, and leave its blocks as they are when
                it is to make this clear again.
        """
        ...

    def usage(self) -> StoreUsage:
        """Returns what is known without waiting; safe from any thread."""
        ...

    def close(self) -> None:
        """Gives up the device; blocks stay for the next worker, and no other call comes."""
        ...

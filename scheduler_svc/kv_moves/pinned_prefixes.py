"""Prefixes in a CPU pool that are pinned for waiting requests until a worker takes them."""

from scheduler_svc.kv.block_allocator import BlockAllocator
from scheduler_svc.queue.admission_queue import AdmissionQueue
from scheduler_svc.requests.sequence_group import SequenceGroup


class PinnedPrefixes:
    """The pinned blocks of one worker, by request of the admission queue."""

    def __init__(self, pool: BlockAllocator, admission: AdmissionQueue) -> None:
        self._pool = pool
        self._admission = admission
        self._blocks: dict[SequenceGroup, list[int]] = {}

    def pin(self, group: SequenceGroup, blocks: list[int]) -> None:
        """Takes over blocks of which the caller has a share, until the request leaves the queue."""
        if blocks:
            self._blocks[group] = blocks
            self._admission.pins[group] = self._unpin

    def _unpin(self, group: SequenceGroup) -> None:
        """Lets the blocks of a request that has left the admission queue be evicted."""
        self._pool.free_chain(self._blocks.pop(group))

    def forget_all(self) -> None:
        """Gives all up: the worker is gone, or its cache is reset."""
        for group in list(self._blocks):
            self._admission.pins.pop(group, None)
            self._unpin(group)

    @property
    def blocks(self) -> list[int]:
        """Blocks, once for each request that they are pinned for."""
        return [block for blocks in self._blocks.values() for block in blocks]

    def check(self) -> None:
        """Asserts that pins are of requests that wait."""
        assert self._blocks.keys() <= self._admission.groups, "blocks are pinned for no request"
        assert all(self._admission.pins[group] == self._unpin for group in self._blocks)

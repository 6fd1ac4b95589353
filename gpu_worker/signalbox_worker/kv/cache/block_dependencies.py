"""Finds the work of one stream that must wait for another's, by the blocks that they use.

Two pieces of work conflict if one writes a block that the other one reads or writes (Bernstein,
1966); all others may overlap. A stream does its own work in order, so waiting for the newest that
conflicts is waiting for all. `CacheEngine`, which copies beside the forward pass, uses it.
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from signalbox_worker.batch.arrays import Int64Array
from signalbox_worker.batch.batch import Batch
from signalbox_worker.device.streams import Event


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockUse:
    """Blocks of the GPU pool that a piece of work touches; a block may be named repeatedly."""

    reads: Int64Array
    writes: Int64Array


def blocks_of(batch: Batch, *, block_size: int) -> BlockUse:
    """Returns what a forward pass reads and writes."""
    num_blocks = -(-batch.context_lens // block_size)
    width = batch.block_tables.shape[1]
    slots = batch.slot_mapping
    return BlockUse(
        reads=batch.block_tables[np.arange(width) < num_blocks[:, None]].astype(np.int64),
        writes=slots[slots >= 0] // block_size,  # a negative slot is padding
    )


class WorkUnderWay:
    """Work of one stream that may not be done yet, oldest first."""

    def __init__(self, *, num_blocks: int) -> None:
        self._works: deque[tuple[Event, Callable[[], BlockUse]]] = deque()
        self._is_used = np.zeros(num_blocks, dtype=np.bool_)

    @property
    def is_idle(self) -> bool:
        self._forget_done()
        return not self._works

    def add(self, event: Event, use: Callable[[], BlockUse]) -> None:
        """Adds work whose end is `event`; `use` is called only when a conflict is looked for."""
        self._forget_done()
        if not event.is_done:
            self._works.append((event, use))

    def conflict(self, use: BlockUse) -> Event | None:
        """Returns the event of the newest work that `use` must not overtake."""
        self._forget_done()
        for event, other in reversed(self._works):
            theirs = other()
            if (
                self._meet(use.writes, theirs.reads)
                or self._meet(use.writes, theirs.writes)
                or self._meet(use.reads, theirs.writes)
            ):
                return event
        return None

    def _meet(self, one: Int64Array, other: Int64Array) -> bool:
        if not len(one) or not len(other):
            return False
        self._is_used[one] = True
        found = bool(self._is_used[other].any())
        self._is_used[one] = False
        return found

    def _forget_done(self) -> None:
        while self._works and self._works[0][0].is_done:
            self._works.popleft()

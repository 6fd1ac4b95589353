"""Finds what has changed among the blocks of a pool that no sequence owns.

The pool notes blocks that become cached or cease to be while it is watched, since to compare all of
a large pool takes too long; holds are few, and are compared.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from signalbox_scheduler.kv.block_allocator import BlockAllocator, HoldKind


class PoolChange(NamedTuple):
    """Blocks that have come to be cached or held, or are no longer."""

    cached: Set[int]
    uncached: Set[int]
    held: Mapping[HoldKind, Sequence[int]]
    """All blocks that are held, ascending, of each kind that has changed."""


class PoolWatch:
    """A pool as it was at the last call of `difference`."""

    def __init__(self, pool: BlockAllocator) -> None:
        self._pool = pool
        self._changed = pool.record_cached()
        self._cached: set[int] = set()
        self._held: dict[HoldKind, list[int]] = {}

    def close(self) -> None:
        """Lets the pool note nothing again."""
        self._pool.stop_recording()

    def difference(self) -> PoolChange:
        """Returns what has changed since the last call; at the first, all that is there."""
        now = set(filter(self._pool.is_cached, self._changed))
        cached, uncached = now - self._cached, (self._changed - now) & self._cached
        self._changed.clear()
        self._cached |= cached
        self._cached -= uncached
        before, self._held = self._held, self._find_held()
        held = {
            kind: self._held.get(kind, [])
            for kind in before.keys() | self._held.keys()
            if before.get(kind) != self._held.get(kind)
        }
        return PoolChange(cached, uncached, held)

    def full(self) -> PoolChange:
        """Returns all that was there at the last call of `difference`."""
        return PoolChange(self._cached, set(), self._held)

    def _find_held(self) -> dict[HoldKind, list[int]]:
        found: dict[HoldKind, set[int]] = defaultdict(set)
        for hold in self._pool.holds:
            if hold.blocks:
                found[hold.kind].update(hold.blocks)
        return {kind: sorted(blocks) for kind, blocks in found.items()}

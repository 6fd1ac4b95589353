"""Chooses which cached block a pool evicts when it has no free one.

The base class, which pools have unless they are given another one, evicts the least recently used.
Blocks that no request is likely to want are evicted before a policy is asked.
"""

from collections.abc import Mapping

from signalbox_scheduler.requests.sequence_group import Sequence


class EvictionPolicy:
    """Evicts the least recently used block."""

    def note_freed(self, seq: Sequence) -> None:
        """Learns that a sequence is about to give its blocks in this pool back."""

    def choose(self, cached: Mapping[int, None], block_of: Mapping[bytes, int]) -> int:
        """Returns the block to evict.

        Args:
            cached: blocks without owners that may be found, the least recently used first.
            block_of: blocks that may be found, with owners or without, by hash.
        """
        return next(iter(cached))


LEAST_RECENT = EvictionPolicy()

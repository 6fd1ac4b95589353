"""Which blocks have been used before, however long they are gone: a table of fixed size.

A block that is as new to the table takes the place of another now and then, which then counts as
never used. Two blocks are taken for one only if 20 + 32 bits of their hashes are equal.
"""

from array import array

from signalbox_scheduler.kv.block_allocator import BlockHash

NUM_PLACES = 1 << 20
"""Blocks that are remembered at most, if no other number is given: 4 MiB."""


class SeenBlocks:
    """Blocks by a few bits of their hashes, each in the one place that these bits name."""

    def __init__(self, num_places: int = NUM_PLACES) -> None:
        self._marks = array("I", bytes(4 * num_places))

    def add(self, block_hash: BlockHash) -> bool:
        """Counts a use of a block; returns whether it was used before."""
        place, mark = self._place(block_hash)
        was_used = self._marks[place] == mark
        self._marks[place] = mark
        return was_used

    def discard(self, block_hash: BlockHash) -> bool:
        """Forgets a block; returns whether it was there."""
        place, mark = self._place(block_hash)
        if is_there := self._marks[place] == mark:
            self._marks[place] = 0
        return is_there

    def _place(self, block_hash: BlockHash) -> tuple[int, int]:
        place = int.from_bytes(block_hash[:4], "little") % len(self._marks)
        return place, int.from_bytes(block_hash[4:8], "little") or 1

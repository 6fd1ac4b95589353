"""Which blocks have been used before, however long they are gone: a table of fixed size.

A block that is as new to the table takes the place of another now and then, which then counts as
never used. Two blocks are taken for one only if 20 + 32 bits of their hashes are equal.
"""

from array import array

from scheduler_svc.kv.block_allocator import BlockHash

NUM_PLACES = 1 << 20
"""Blocks that are remembered at most: 4 MiB."""


class UsedBlocks:
    """Blocks by a few bits of their hashes, each in the one place that these bits name."""

    def __init__(self) -> None:
        self._marks = array("I", bytes(4 * NUM_PLACES))

    def add(self, block_hash: BlockHash) -> bool:
        """Counts a use of a block; returns whether it was used before."""
        place = int.from_bytes(block_hash[:4], "little") % NUM_PLACES
        mark = int.from_bytes(block_hash[4:8], "little") or 1
        was_used = self._marks[place] == mark
        self._marks[place] = mark
        return was_used

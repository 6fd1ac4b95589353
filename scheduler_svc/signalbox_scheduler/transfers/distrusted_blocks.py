"""Blocks that went wrong and may be in a store, from which no worker of the cluster fetches them.

A store that several workers share may have a block of any of them, and the files of a worker are
those of the one that is started in its place.
"""

from collections import OrderedDict

from signalbox_scheduler.kv.block_allocator import BlockHash

MAX_DISTRUSTED = 4096


class DistrustedBlocks:
    """The last of them, by hash."""

    def __init__(self) -> None:
        self._hashes: OrderedDict[BlockHash, None] = OrderedDict()

    def __contains__(self, block_hash: BlockHash) -> bool:
        return block_hash in self._hashes

    def add(self, block_hash: BlockHash) -> None:
        """Adds a block; the one that was added first is forgotten if there are too many."""
        self._hashes[block_hash] = None
        if len(self._hashes) > MAX_DISTRUSTED:
            self._hashes.popitem(last=False)

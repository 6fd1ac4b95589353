"""Hands out the blocks of one pool, counts who shares them, and keeps what may be used again.

A block is used (it has owners), cached (it has none, but what it holds is known by a hash and may
be wanted again) or free. `check` states the conservation law.
"""

BlockHash = bytes


class BlockAllocator:
    """Block numbers [0, num_blocks) of one device.

    Free blocks are handed out before cached ones; of those the least recently used goes first.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_owners = [0] * num_blocks
        self._cached: dict[int, None] = {}  # blocks without owners, least recently used first
        self._hash_of: dict[int, BlockHash] = {}  # used and cached blocks that may be found
        self._block_of: dict[BlockHash, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be had: free and cached."""
        return len(self._free) + len(self._cached)

    @property
    def num_cached(self) -> int:
        return len(self._cached)

    @property
    def cached_blocks(self) -> list[int]:
        """Blocks without owners that may be found, least recently used first."""
        return list(self._cached)

    def num_owners(self) -> dict[int, int]:
        """Returns how many share each block in use."""
        return {block: count for block, count in enumerate(self._num_owners) if count}

    def allocate(self) -> int:
        """Takes a block. Raises IndexError if there is none: ask `num_free` first."""
        if not self._free and self._cached:
            self._evict(next(iter(self._cached)))
        block = self._free.pop()
        self._num_owners[block] = 1
        return block

    def share(self, block: int) -> None:
        """Adds an owner to a block in use, or takes a cached one into use."""
        assert self._num_owners[block] or block in self._cached, f"block {block} is free"
        self._cached.pop(block, None)
        self._num_owners[block] += 1

    def free(self, block: int) -> None:
        """Takes an owner away; without any a block that can be found is kept, others are free."""
        assert self._num_owners[block] > 0, f"block {block} is freed twice"
        self._num_owners[block] -= 1
        if not self._num_owners[block]:
            if block in self._hash_of:
                self._cached[block] = None
            else:
                self._free.append(block)

    def is_shared(self, block: int) -> bool:
        return self._num_owners[block] > 1

    def is_cached(self, block: int) -> bool:
        return block in self._cached

    def publish(self, block: int, block_hash: BlockHash) -> None:
        """Lets a used block be found, unless another block holds the same or it has a hash."""
        assert self._num_owners[block] > 0, f"block {block} has no owner"
        if block_hash not in self._block_of and block not in self._hash_of:
            self._block_of[block_hash] = block
            self._hash_of[block] = block_hash

    def retract(self, block: int) -> None:
        """Keeps a block from being found; a no-op if it could not be."""
        block_hash = self._hash_of.pop(block, None)
        if block_hash is not None:
            del self._block_of[block_hash]

    def find(self, block_hash: BlockHash) -> int | None:
        """Returns the used or cached block that holds what the hash stands for."""
        return self._block_of.get(block_hash)

    def _evict(self, block: int) -> None:
        del self._cached[block]
        self.retract(block)
        self._free.append(block)

    def check(self, owners: dict[int, int]) -> None:
        """Asserts that `owners` (block to number of tables that hold it) is what was handed out."""
        used = self.num_owners()
        free, cached = set(self._free), self._cached.keys()
        assert used == owners, "reference counts differ from the block tables"
        assert len(free) == len(self._free), "a block is free twice"
        assert not (used.keys() & free or used.keys() & cached or cached & free), "in two places"
        assert len(free) + len(cached) + len(used) == self.num_blocks, "free + cached + used"
        assert cached <= self._hash_of.keys(), "a cached block cannot be found"
        assert not free & self._hash_of.keys(), "a free block can be found"
        assert {h: b for b, h in self._hash_of.items()} == self._block_of

"""Hands out the blocks of one pool and counts who shares them."""


class BlockAllocator:
    """Block numbers [0, num_blocks) of one device, with reference counts.

    Pure bookkeeping; `check` states the conservation law. Blocks freed last are handed out first,
    because they are the likeliest to be in a cache.
    """

    def __init__(self, num_blocks: int) -> None:
        self.num_blocks = num_blocks
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_references = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self) -> int:
        """Takes a free block. Raises IndexError if there is none: ask `num_free` first."""
        block = self._free.pop()
        self._num_references[block] = 1
        return block

    def share(self, block: int) -> None:
        """Adds an owner to a block in use."""
        assert self._num_references[block] > 0, f"block {block} is free"
        self._num_references[block] += 1

    def free(self, block: int) -> None:
        """Takes an owner away; the last one's leaving frees the block."""
        assert self._num_references[block] > 0, f"block {block} is freed twice"
        self._num_references[block] -= 1
        if not self._num_references[block]:
            self._free.append(block)

    def is_shared(self, block: int) -> bool:
        return self._num_references[block] > 1

    def check(self, owners: dict[int, int]) -> None:
        """Asserts that `owners` (block to number of tables that hold it) is what was handed out."""
        counted = {block: count for block, count in enumerate(self._num_references) if count}
        assert counted == owners, "reference counts differ from the block tables"
        assert len(set(self._free)) == len(self._free), "a block is free twice"
        assert len(self._free) + len(counted) == self.num_blocks, "free + used != total"
        assert not counted.keys() & set(self._free), "a block is both free and used"

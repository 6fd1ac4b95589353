"""Owns blocks of one pool for parts of the scheduler other than sequences.

A prefix that loads or waits for its request, a transfer, an export, a reservation and the plan in
the making each own a `Hold`. The pool knows its holds, so `check` finds the owners of each block in
use. No module outside this folder calls the allocator.
"""

from collections.abc import Iterable, Sequence

from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockHash, HoldKind


class Hold:
    """Blocks of a pool that are owned, and given up, as one.

    Args:
        blocks: blocks whose ownership passes from the caller to the hold.
        kind: purpose, which watchers are told.
    """

    __slots__ = ("__weakref__", "blocks", "kind", "pool")

    def __init__(
        self,
        pool: BlockAllocator,
        blocks: Iterable[int] = (),
        *,
        kind: HoldKind = HoldKind.PLAN,
    ) -> None:
        self.pool = pool
        self.kind = kind
        self.blocks = list(blocks)
        """Blocks in the order in which they came. Written by this class alone."""
        pool.holds.add(self)

    def take(self, num_blocks: int) -> list[int]:
        """Adds blocks that hold nothing yet, and returns them; ask the pool's `num_free` first."""
        taken = [self.pool.allocate() for _ in range(num_blocks)]
        self.blocks += taken
        return taken

    def take_state(self, num_blocks: int) -> int:
        """Adds a state of so many blocks, or a block, that holds nothing yet; returns the first,
        which stands for all. Ask the pool's `num_free` first."""
        head = self.pool.allocate_state(num_blocks)
        self.blocks.append(head)
        return head

    def share(self, blocks: Iterable[int]) -> None:
        """Adds blocks that are in use or cached."""
        for block in blocks:
            self.pool.share(block)
            self.blocks.append(block)

    def publish(self, hashes: Sequence[BlockHash | None]) -> "Hold":
        """Moves the first blocks to a new hold, and lets them be found by these hashes.

        A block is found by no hash if its own is None or if another block holds the same.
        """
        count = len(hashes)
        published = Hold(self.pool, self.blocks[:count], kind=self.kind)
        self.blocks = self.blocks[count:]
        for block, block_hash in zip(published.blocks, hashes, strict=True):
            if block_hash is not None:
                self.pool.cache_block(block, block_hash)
        return published

    def retract(self) -> None:
        """Keeps the blocks from being found as long as they have owners."""
        for block in self.blocks:
            self.pool.retract(block)

    def split(self, num_blocks: int) -> "Hold":
        """Keeps the first blocks; moves the others to a new hold."""
        rest = Hold(self.pool, self.blocks[num_blocks:], kind=self.kind)
        self.blocks = self.blocks[:num_blocks]
        return rest

    def absorb(self, other: "Hold") -> None:
        """Takes all blocks of another hold."""
        assert other.pool is self.pool, "the blocks are of another pool"
        self.blocks += other.blocks
        other.blocks = []

    def drop(self, block: int) -> None:
        """Gives up one of the blocks."""
        self.blocks.remove(block)
        self.pool.free(block)

    def release(self, *, oldest_first: bool = False, evict_first: bool = False) -> None:
        """Gives up all blocks. Of those that stay cached the last is evicted first.

        The plan in the making copies nothing to those that have no other owner.

        Args:
            oldest_first: evict the first of them first, since they are no chain.
            evict_first: evict them before all blocks that are cached already.
        """
        blocks, self.blocks = self.blocks, []
        if self.pool.incoming:
            self.pool.omit_copies(blocks)
        for block in blocks if oldest_first or evict_first else reversed(blocks):
            self.pool.free(block, evict_first=evict_first)

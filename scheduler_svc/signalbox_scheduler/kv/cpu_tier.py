"""The CPU pool: the blocks of swapped groups, and behind them a second tier of the prefix cache.

A cached block that the GPU pool evicts is copied here if that pays, and is found by its hash. The
blocks of swapped groups are found too, and those that are here already are not copied again: a step
makes both kinds of copies in the same way. Cached blocks make room for swapped ones. The tiers
follow CachedAttention (Gao et al., USENIX ATC 2024).

A worker swaps out before it swaps in. So whatever the plan in the making reads or writes here is
held until the plan is complete: it is not handed out again, and what the plan brings is not found.

A state of recurrent layers is kept, found and given up whole, under one hash.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from typing import Protocol

from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockCopy, BlockHash
from signalbox_scheduler.kv.hold import Hold

Sizes = Collection[tuple[BlockHash | None, int]]
"""Hash, if it has one, and number of blocks of each block or state of a group."""


class CopyCosts(Protocol):
    """Says what is worth a copy; `CostModel` is one."""

    def keeps_more(self, num_blocks: int, *, num_kept: int, block_size: int) -> bool:
        """Returns True if a step that copies `num_kept` evicted blocks out should copy so many
        more."""
        ...

    def fetches(self, *, block_size: int) -> bool:
        """Returns True if copying a block in takes less time than computing its tokens again."""
        ...


class CpuTier:
    """The blocks of the CPU pool, and what the plan in the making does to them."""

    def __init__(self, shape: CacheShape, *, costs: CopyCosts) -> None:
        self.pool = BlockAllocator(shape.num_cpu_blocks)
        self.is_cache = shape.prefix_caching and shape.cpu_prefix_cache
        """True if it is a second tier of the prefix cache, too."""
        self._block_size = shape.block_size
        self._costs = costs
        self.pinned = Hold(self.pool)
        """Blocks that the plan in the making reads or writes, until it is finished."""
        self.evictions: dict[BlockHash, list[BlockCopy]] = {}
        """Copies, of a block or all those of a state, that keep what the GPU pool evicts."""
        self._kept = Hold(self.pool)  # their destinations
        self._arriving: set[int] = set()  # blocks that it writes

    @property
    def num_free(self) -> int:
        """Blocks that a group can be swapped out to, at the cost of what is cached."""
        return self.pool.num_free + sum(len(self.evictions[h]) for h in self._revocable())

    def num_taken(self, sizes: Sizes) -> int:
        """Returns how many of `num_free` blocks a group takes."""
        num_blocks = sum(number for _, number in sizes)
        if not self.is_cache:
            return num_blocks
        revocable = self._revocable()
        return num_blocks - sum(
            number for h, number in sizes if h and h not in revocable and self.pool.num_used([h])
        )

    def _revocable(self) -> list[BlockHash]:
        """Returns hashes of evicted blocks whose copies the plan can omit."""
        evictions = self.evictions.items()
        return [h for h, (first, *_) in evictions if not self.pool.is_shared(first.dst)]

    def keep(self, gpu_blocks: list[int], block_hash: BlockHash) -> None:
        """Takes a copy of a block, or a state, that the GPU pool evicts, unless it has one or it is
        no use."""
        known = self.pool.find(block_hash)
        if known is not None:
            self.pool.touch(known)
        elif self.pool.num_free >= len(gpu_blocks) and self._keeps_more(len(gpu_blocks)):
            head = self._kept.take_state(len(gpu_blocks))
            self.pool.cache_block(head, block_hash)
            self.evictions[block_hash] = copies_between(gpu_blocks, self.pool.blocks_of(head))
            self._arriving.add(head)

    def _keeps_more(self, num_blocks: int) -> bool:
        num_kept, size = sum(map(len, self.evictions.values())), self._block_size
        return self.is_cache and self._costs.keeps_more(
            num_blocks, num_kept=num_kept, block_size=size
        )

    def find(self, block_hash: BlockHash) -> int | None:
        """Returns the block to copy in for a hash, if there is one and that pays."""
        block = self.pool.find(block_hash)
        if block is None or block in self._arriving:
            return None
        return block if self._costs.fetches(block_size=self._block_size) else None

    def make_room(self, sizes: Sizes) -> None:
        """Gives up copies of evicted blocks that are in the way of a group's; ask `num_free`."""
        wanted = self.num_taken(sizes)
        for block_hash in self._revocable():
            if self.pool.num_free >= wanted:
                return
            block = self.evictions.pop(block_hash)[0].dst
            self.pool.retract(block)
            self._kept.drop(block)
            self._arriving.remove(block)

    def is_arriving(self, blocks: Iterable[int]) -> bool:
        """Says whether the plan writes any of some blocks, so that it cannot read them."""
        return not self._arriving.isdisjoint(blocks)

    def pin(self, blocks: Sequence[int], *, arriving: bool) -> None:
        """Keeps blocks as they are until the plan that reads them, or writes them, is complete."""
        self.pinned.share(blocks)
        if arriving:
            self._arriving.update(blocks)

    def unpin_after_step(self, blocks: Hold) -> None:
        """Takes over blocks that the plan reads, and gives them up when it is complete."""
        self.pinned.absorb(blocks)

    def finish_plan(self) -> list[BlockCopy]:
        """Ends the plan in the making; returns the copies out that keep evicted blocks."""
        copies = list(chain.from_iterable(self.evictions.values()))
        self.evictions.clear()
        self._kept.release(oldest_first=True)
        self.pinned.release(evict_first=True)  # what was copied in is on the GPU as well
        self._arriving.clear()
        return copies

    def forget(self, block_hash: BlockHash) -> None:
        """Keeps what a hash stands for from being found."""
        block = self.pool.find(block_hash)
        if block is not None:
            self.pool.retract(block)


def copies_between(sources: Sequence[int], targets: Sequence[int]) -> list[BlockCopy]:
    """Returns the copies of blocks, one by one."""
    return [BlockCopy(*pair) for pair in zip(sources, targets, strict=True)]

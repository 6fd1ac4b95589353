"""Moves a group's block tables to the other pool, each block once, and states with all of theirs.

What the other pool holds already, by its hash, is shared and not copied.
"""

from typing import NamedTuple

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockCopy, BlockHash
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cpu_tier import copies_between
from signalbox_scheduler.kv.prefix_cache import PrefixCache
from signalbox_scheduler.requests.sequence_group import SequenceGroup


class GroupMove(NamedTuple):
    """Copies to make, and the blocks that are left behind, once for each table that held one."""

    copies: list[BlockCopy]
    left: list[int]


def distinct_blocks(
    group: SequenceGroup, pool: BlockAllocator, prefix_cache: PrefixCache
) -> dict[int, BlockHash | None]:
    """Returns each block of the group once, and the hash of what it holds if that is public."""
    return {
        block: prefix_cache.public_hash(seq, index, pool)
        for seq in group.unfinished
        for index, block in enumerate(seq.block_table)
        if block != NO_BLOCK
    }


def move(
    group: SequenceGroup,
    source: BlockAllocator,
    target: BlockAllocator,
    prefix_cache: PrefixCache,
    *,
    finds: bool,
) -> GroupMove:
    """Gives the group blocks of another pool; `finds` those that hold its tokens already."""
    moved: dict[int, int] = {}  # physical block on the source: its new place
    copies: list[BlockCopy] = []
    left: list[int] = []
    for seq in group.unfinished:
        left += held(seq.block_table)
        for index, block in enumerate(seq.block_table):
            if block == NO_BLOCK:
                continue
            if block in moved:
                target.share(moved[block])
            else:
                block_hash = prefix_cache.public_hash(seq, index, source)
                blocks = source.blocks_of(block)
                wanted = block_hash if finds else None
                obtained = target.obtain(wanted, num_blocks=len(blocks))
                moved[block] = obtained.block
                if source.is_private(block):
                    target.retract(obtained.block)
                if not obtained.is_found:
                    copies += copies_between(blocks, target.blocks_of(obtained.block))
            seq.block_table[index] = moved[block]
    return GroupMove(copies, left)

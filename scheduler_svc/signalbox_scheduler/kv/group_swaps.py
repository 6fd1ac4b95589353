"""Swaps groups between the GPU pool and the CPU pool: each block once, a state with all of its own.

What the other pool holds already, by its hash, is shared and not copied.
"""

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_scheduler.kv.block_allocator import AllocStatus, BlockAllocator, BlockCopy
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cpu_tier import CpuTier, Sizes, copies_between
from signalbox_scheduler.kv.group_sizes import GroupSizes
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv.planned_copies import PlannedCopies
from signalbox_scheduler.kv.prefix_cache import PrefixCache
from signalbox_scheduler.kv.running_states import RunningStates
from signalbox_scheduler.requests.sequence_group import SequenceGroup


class GroupSwaps:
    """Moves the block tables of groups to the other pool, and plans the copies for that."""

    def __init__(
        self,
        *,
        gpu: BlockAllocator,
        cpu_tier: CpuTier,
        copies: PlannedCopies,
        prefix_cache: PrefixCache,
        states: RunningStates,
        sizes: GroupSizes,
    ) -> None:
        self._gpu = gpu
        self._cpu_tier = cpu_tier
        self._cpu = cpu_tier.pool
        self._copies = copies
        self._prefix_cache = prefix_cache
        self._states = states
        self._sizes = sizes

    def can_swap_out(self, group: SequenceGroup) -> bool:
        """Says whether the CPU pool has room for the group's blocks."""
        return self._cpu_tier.num_taken(self._sizes_of(group)) <= self._cpu_tier.num_free

    def can_swap_in(self, group: SequenceGroup) -> AllocStatus:
        """Says whether the group's blocks fit on the GPU, with a row more for each sequence."""
        blocks = self._prefix_cache.distinct_blocks(group, self._cpu)
        # Those of one hash become one.
        sizes = {name or block: self._cpu.num_blocks_of([block]) for block, name in blocks.items()}
        num_blocks = sum(sizes.values())
        grown = num_blocks + len(group.unfinished) * self._sizes.num_in_rows(1)
        wanted = min(grown, max(num_blocks, self._sizes.most_blocks(group)))
        if wanted > self._gpu.num_blocks:
            return AllocStatus.NEVER
        if self._cpu_tier.is_arriving(blocks):
            return AllocStatus.LATER
        names = ((h, number) for h, number in sizes.items() if isinstance(h, bytes))
        in_use = sum(number for h, number in names if self._gpu.num_used([h]))
        return self._gpu.room_for(wanted - in_use)

    def swap_out(self, group: SequenceGroup) -> None:
        """Moves the group's blocks to the CPU pool; snapshots are not needed, and stay cached."""
        for seq in group.unfinished:
            self._states.yield_snapshots(seq)
        self._cpu_tier.make_room(self._sizes_of(group))
        finds = self._cpu_tier.is_cache
        copies, left = self._move(group, self._gpu, self._cpu, finds=finds)
        self._copies.add_out(copies)
        self._gpu.free_chain(left)

    def swap_in(self, group: SequenceGroup) -> None:
        """Moves the group's blocks back to the GPU."""
        copies, left = self._move(group, self._cpu, self._gpu, finds=True)
        self._cpu_tier.unpin_after_step(Hold(self._cpu, left))
        self._copies.add_in(copies)
        for seq in group.unfinished:
            self._states.announce(seq.block_table)

    def _sizes_of(self, group: SequenceGroup) -> Sizes:
        blocks = self._prefix_cache.distinct_blocks(group, self._gpu)
        return [(name, self._gpu.num_blocks_of([block])) for block, name in blocks.items()]

    def _move(
        self, group: SequenceGroup, source: BlockAllocator, target: BlockAllocator, *, finds: bool
    ) -> tuple[list[BlockCopy], list[int]]:
        """Gives the group blocks of another pool; `finds` those that hold its tokens already.

        Returns the copies to make, and the blocks that are left behind, once for each table that
        held one.
        """
        moved: dict[int, int] = {}  # block of the source: its new place
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
                    block_hash = self._prefix_cache.public_hash(seq, index, source)
                    blocks = source.blocks_of(block)
                    wanted = block_hash if finds else None
                    obtained = target.obtain(wanted, num_blocks=len(blocks))
                    moved[block] = obtained.block
                    if source.is_private(block):
                        target.retract(obtained.block)
                    if not obtained.is_found:
                        copies += copies_between(blocks, target.blocks_of(obtained.block))
                seq.block_table[index] = moved[block]
        return copies, left

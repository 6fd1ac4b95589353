"""The block copies of the plan in the making, within the GPU pool and between the pools.

The block tables of sequences call for copies, and so does the worker's connector for blocks that
no sequence owns. The worker copies out of the GPU pool first, then into it.
"""

from signalbox_contract.sections.block_moves import NO_MOVES, BlockMapping, BlockMoves
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockCopy, BlockHash
from signalbox_scheduler.kv.cpu_tier import CpuTier, copies_between
from signalbox_scheduler.kv.hold import Hold


class PlannedCopies:
    """Copies that are collected until `finish_plan`; each pool has those into it."""

    def __init__(self, gpu: BlockAllocator, cpu_tier: CpuTier) -> None:
        self._gpu = gpu
        self._cpu = cpu_tier.pool
        self._cpu_tier = cpu_tier
        self._within_gpu: list[BlockCopy] = []

    @property
    def num_out(self) -> int:
        """Copies out of the GPU pool, without those that keep evicted blocks."""
        return len(self._cpu.incoming)

    @property
    def has_swaps(self) -> bool:
        """True if blocks are copied from one pool to the other."""
        return bool(self._cpu.incoming or self._gpu.incoming)

    def add_out(self, copies: list[BlockCopy]) -> None:
        """Adds copies to the CPU pool, which keeps their blocks until the plan is finished."""
        owned = [copy.dst for copy in copies if self._cpu.is_owned(copy.dst)]
        self._cpu_tier.pin(owned, arriving=True)
        self._cpu.incoming += copies

    def add_in(self, copies: list[BlockCopy]) -> None:
        """Adds copies of blocks that the CPU pool keeps until the plan is finished."""
        self._gpu.incoming += copies

    def add_within(self, copy: BlockCopy) -> None:
        self._within_gpu.append(copy)

    def copy_in(self, source: Hold, target: Hold) -> None:
        """Copies blocks of the CPU pool, which the plan takes over, to as many GPU blocks."""
        for here, there in zip(source.blocks, target.blocks, strict=True):
            self.add_in(copies_between(self._cpu.blocks_of(here), self._gpu.blocks_of(there)))
        self._cpu_tier.unpin_after_step(source)

    def copy_out(self, gpu_block: int, hold: Hold) -> bool:
        """Adds a block of the CPU pool, to which one of the GPU is copied, to a hold, or a state.

        Nothing finds it. False if there is no room for it, or if the same plan brings the block to
        the GPU.
        """
        blocks = self._gpu.blocks_of(gpu_block)
        is_coming = any(gpu_block == copy.dst for copy in self._gpu.incoming)
        if self._cpu.num_free < len(blocks) or is_coming:
            return False
        head = hold.take_state(len(blocks))
        self.add_out(copies_between(blocks, self._cpu.blocks_of(head)))
        return True

    def store_copy(self, block_hash: BlockHash, hold: Hold) -> bool:
        """Adds a block of the CPU pool that holds what a hash stands for to a hold.

        It is copied if it is on the GPU alone. False if it is nowhere, or if it cannot be copied
        now.
        """
        block = self._cpu.find(block_hash)
        if block is not None:
            hold.share([block])
            return True
        gpu_block = self._gpu.find(block_hash)
        if gpu_block is None or not self.copy_out(gpu_block, hold):
            return False
        self._cpu.cache_block(hold.blocks[-1], block_hash)
        return True

    def finish_plan(self) -> BlockMoves:
        """Ends the plan in the making; returns its copies, with those that keep evicted blocks."""
        keeps = bool(self._cpu_tier.pinned.blocks or self._cpu_tier.evictions)
        if not (keeps or self._within_gpu or self._cpu.incoming or self._gpu.incoming):
            return NO_MOVES
        out, self._cpu.incoming = self._cpu.incoming, []  # before their blocks are given up
        into, self._gpu.incoming = self._gpu.incoming, []
        within, self._within_gpu = self._within_gpu, []
        if keeps:
            out += self._cpu_tier.finish_plan()
        if not (within or out or into):
            return NO_MOVES
        return BlockMoves(
            swap_out=BlockMapping.of(out),
            swap_in=BlockMapping.of(into),
            copy=BlockMapping.of(within),
        )

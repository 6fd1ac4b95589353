"""The block copies of the plan in the making, within the GPU pool and between the pools.

The block tables of sequences call for copies, and so do the workers' stores, lends and handovers,
whose blocks no sequence owns. The worker copies out of the GPU pool first, then into it.
"""

from dataclasses import dataclass, field

from contract.sections.block_moves import NO_MOVES, BlockMapping, BlockMoves
from scheduler_svc.kv.block_allocator import BlockAllocator, BlockCopy, BlockHash
from scheduler_svc.kv.cpu_tier import CpuTier


@dataclass(slots=True)
class PlannedCopies:
    """Copies that are collected until `finish_plan`, by pools."""

    gpu: BlockAllocator
    cpu_tier: CpuTier
    out_of_gpu: list[BlockCopy] = field(default_factory=list)
    into_gpu: list[BlockCopy] = field(default_factory=list)
    within_gpu: list[BlockCopy] = field(default_factory=list)

    @property
    def has_swaps(self) -> bool:
        """True if blocks are copied from one pool to the other."""
        return bool(self.out_of_gpu or self.into_gpu)

    @property
    def has_any(self) -> bool:
        """True if blocks are copied, or if `finish_plan` may add copies."""
        if self.within_gpu or self.out_of_gpu or self.into_gpu:
            return True
        return bool(self.cpu_tier.held or self.cpu_tier.kept)

    def add_out(self, copies: list[BlockCopy]) -> None:
        """Adds copies to the CPU pool, which keeps their blocks until the plan is finished."""
        self.cpu_tier.hold((copy.dst for copy in copies), arriving=True)
        self.out_of_gpu += copies

    def add_in(self, copies: list[BlockCopy]) -> None:
        """Adds copies of blocks that the CPU pool keeps until the plan is finished."""
        self.into_gpu += copies

    def add_within(self, copy: BlockCopy) -> None:
        self.within_gpu.append(copy)

    def copy_in(self, cpu_block: int, gpu_block: int) -> None:
        """Copies a block of the CPU pool, which the caller gives up, to a GPU block of its own."""
        self.add_in([BlockCopy(cpu_block, gpu_block)])
        self.cpu_tier.leave([cpu_block])

    def copy_out(self, gpu_block: int) -> int | None:
        """Takes a block of the CPU pool to which one of the GPU is copied.

        Nothing finds it. None if there is no room for it, or if the same plan brings the block to
        the GPU.
        """
        cpu = self.cpu_tier.pool
        if not cpu.num_free or any(gpu_block == copy.dst for copy in self.into_gpu):
            return None
        block = cpu.allocate()
        self.add_out([BlockCopy(gpu_block, block)])
        return block

    def store_copy(self, block_hash: BlockHash) -> int | None:
        """Takes a block of the CPU pool that holds what a hash stands for, to be stored.

        It is copied if it is on the GPU alone. None if it is nowhere, or if it cannot be copied
        now.
        """
        cpu = self.cpu_tier.pool
        block = cpu.find(block_hash)
        if block is not None:
            cpu.share(block)
            return block
        gpu_block = self.gpu.find(block_hash)
        block = None if gpu_block is None else self.copy_out(gpu_block)
        if block is not None:
            cpu.cache_block(block, block_hash)
        return block

    def give_up(self, gpu_blocks: list[int]) -> None:
        """Frees GPU blocks of an owner that is no sequence.

        What is on its way to those without another owner is not copied.
        """
        given_up = {block for block in gpu_blocks if not self.gpu.is_shared(block)}
        for copy in self.into_gpu:
            if copy.dst in given_up:
                self.gpu.retract(copy.dst)
        self.into_gpu = [copy for copy in self.into_gpu if copy.dst not in given_up]
        self.gpu.free_chain(gpu_blocks)

    def finish_plan(self) -> BlockMoves:
        """Ends the plan in the making; returns its copies, with those that keep evicted blocks."""
        if self.cpu_tier.held or self.cpu_tier.kept:
            self.out_of_gpu += self.cpu_tier.finish_plan()
        moves = NO_MOVES
        if self.within_gpu or self.has_swaps:
            moves = BlockMoves(
                swap_out=BlockMapping.of(self.out_of_gpu),
                swap_in=BlockMapping.of(self.into_gpu),
                copy=BlockMapping.of(self.within_gpu),
            )
        self.out_of_gpu, self.into_gpu, self.within_gpu = [], [], []
        return moves

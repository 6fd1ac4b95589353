"""Maps logical KV blocks of sequences to physical blocks on GPU and in CPU swap.

Pure bookkeeping: no tensors, no I/O. The methods add the copies that they call for to `copies`; the
worker makes them. Follows PagedAttention (Kwon et al., SOSP 2023, sections 4.3 to 4.5).
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from enum import Enum, auto
from typing import NamedTuple

from signalbox_rpc.metrics.sample import Sample, gauge
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockCopy, BlockHash
from signalbox_scheduler.kv.block_moves import distinct_blocks, move
from signalbox_scheduler.kv.cpu_tier import CopyCosts, CpuTier
from signalbox_scheduler.kv.group_sizes import GroupSizes
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv.planned_copies import PlannedCopies
from signalbox_scheduler.kv.prefix_cache import FoundBlock, PrefixCache
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup, SequenceStatus


class AllocStatus(Enum):
    """Answer to a request for blocks: now, after other groups have freed some, or never."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


class PrefixFound(NamedTuple):
    """A sequence has started with blocks that hold its first tokens already."""

    seq: Sequence
    num_blocks: int


class SequenceFreed(NamedTuple):
    """A sequence that has ended has given its blocks back."""

    seq: Sequence
    num_cached_blocks: int
    """Leading blocks that could be found by their hashes."""


class BlockRetracted(NamedTuple):
    """Blocks of a hash are found no more, because their sequence went wrong."""

    block_hash: BlockHash


BlockEvent = PrefixFound | SequenceFreed | BlockRetracted


class BlockSpaceManager:
    """The block tables of one worker's sequences, and the pools that they draw from.

    Args:
        costs: decides which copies for the prefix cache are worth it.
    """

    def __init__(self, shape: CacheShape, *, costs: CopyCosts) -> None:
        self.block_size = shape.block_size
        self.sizes = GroupSizes(
            block_size=shape.block_size,
            num_gpu_blocks=shape.num_gpu_blocks,
            max_model_len=shape.max_model_len,
        )
        self.prefix_caching = shape.prefix_caching
        self.cpu_tier = CpuTier(
            num_blocks=shape.num_cpu_blocks,
            block_size=shape.block_size,
            is_cache=shape.prefix_caching and shape.cpu_prefix_cache,
            costs=costs,
        )
        self.gpu = BlockAllocator(shape.num_gpu_blocks, on_evict=self.cpu_tier.keep)
        self.cpu = self.cpu_tier.pool
        self.copies = PlannedCopies(self.gpu, self.cpu_tier)
        """Copies of the plan in the making."""
        self.records_events = False
        """True if a reader takes the events; else none are recorded."""
        self._events: list[BlockEvent] = []
        self._num_watermark_blocks = shape.num_watermark_blocks
        self._prefix_cache = PrefixCache(
            block_size=shape.block_size,
            gpu=self.gpu,
            cpu_tier=self.cpu_tier,
            is_on=shape.prefix_caching,
        )

    def samples(self, *, cache_dtype: str) -> Iterator[Sample]:
        num_tokens = self.gpu.num_blocks * self.block_size
        yield gauge(
            "cache_config_info",
            "How a worker's KV cache is set up; always 1.",
            1,
            block_size=str(self.block_size),
            num_gpu_blocks=str(self.gpu.num_blocks),
            num_cpu_blocks=str(self.cpu.num_blocks),
            kv_cache_size_tokens=str(num_tokens),
            kv_cache_max_concurrency=f"{num_tokens / self.sizes.max_model_len:.4g}",
            enable_prefix_caching=str(self.prefix_caching),
            cache_dtype=cache_dtype,
        )
        yield gauge(
            "kv_cache_usage_perc",
            "Share of the KV-cache blocks that requests hold, 1 is all.",
            self.gpu.share_in_use,
        )
        yield gauge(
            "cpu_cache_usage_perc",
            "Share of the swap blocks that requests hold, 1 is all.",
            self.cpu.share_in_use,
        )
        yield gauge("num_gpu_blocks", "KV-cache blocks.", self.gpu.num_blocks)
        yield gauge("num_cpu_blocks", "Swap blocks.", self.cpu.num_blocks)

    def take_events(self) -> list[BlockEvent]:
        """Returns what was found, freed and taken back since the last call, in order."""
        events = self._events
        if events:
            self._events = []
        return events

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Says whether the group's first sequence fits, with all its known tokens."""
        if not self.sizes.can_ever_hold(group):
            return AllocStatus.NEVER
        seq = group.unfinished[0]
        prefix = self.find_prefix(seq)
        return self._has_room(self._num_taken(seq, prefix))

    def _has_room(self, num_blocks: int) -> AllocStatus:
        """Says whether a group that is admitted can have so many GPU blocks."""
        # The watermark protects running groups; alone on the worker, a group needs no protection.
        alone = self.gpu.num_free == self.gpu.num_blocks
        left = self.gpu.num_free - num_blocks
        enough = left >= (0 if alone else self._num_watermark_blocks)
        return AllocStatus.OK if enough else AllocStatus.LATER

    def find_prefix(self, seq: Sequence) -> list[FoundBlock]:
        """Returns the blocks that hold the sequence's first tokens, all but the last at most.

        None for a prompt that has to be computed whatever is known of it.
        """
        return self._prefix_cache.find(seq)

    def private_hash(self, seq: Sequence, index: int) -> BlockHash:
        """Returns a name of what a block of the sequence's table holds that nothing may find."""
        return self._prefix_cache.private_hash(seq, index)

    def prefix_hashes(self, seq: Sequence, start: int, end: int) -> list[BlockHash]:
        """Returns the names of what the blocks [start, end) of the sequence's table are to hold."""
        return [self._prefix_cache.hash(seq, index) for index in range(start, end)]

    def estimate_prefix(self, seq: Sequence) -> int:
        """Returns how many of the sequence's leading blocks are here, by looking at a few."""
        return self._prefix_cache.estimate(seq)

    def has_room(self, num_blocks: int) -> bool:
        """Says whether what comes in can have so many GPU blocks."""
        return self._has_room(num_blocks) is AllocStatus.OK

    def can_start(self, seq: Sequence, prefix: list[FoundBlock]) -> bool:
        """Says whether a sequence without blocks fits, given blocks that it may share."""
        return self._num_taken(seq, prefix) <= self.gpu.num_free

    def start(self, seq: Sequence, prefix: list[FoundBlock]) -> None:
        """Gives a sequence its first blocks: those of `prefix`, and new ones for its other tokens.

        The sequence counts the tokens of `prefix` as computed already.
        """
        for found in prefix:  # before a new block is taken, which might be one of these
            if found.is_on_gpu:
                self.gpu.share(found.block)
            else:
                self.cpu_tier.pin([found.block], arriving=False)
        for index, found in enumerate(prefix):
            block = found.block
            if not found.is_on_gpu:
                block = self.gpu.obtain(self._prefix_cache.hash(seq, index)).block
                self.copies.add_in([BlockCopy(found.block, block)])
            seq.block_table.append(block)
        self._prefix_cache.record_shared(seq, len(prefix))
        if self.records_events and prefix:
            self._events.append(PrefixFound(seq, len(prefix)))
        self.append_slots(seq, seq.num_remaining_tokens)

    def cache_blocks(self, seq: Sequence) -> None:
        """Lets whole computed blocks be found; to be called when their tokens are accepted."""
        self._prefix_cache.cache_blocks(seq)

    def retract(self, seq: Sequence) -> None:
        """Keeps the blocks of a sequence that went wrong from being found."""
        hashes = self._prefix_cache.retract(seq)
        if self.records_events:
            self._events += map(BlockRetracted, hashes)

    def forget(self, block_hash: BlockHash) -> None:
        """Keeps what a hash stands for from being found: it went wrong where it was computed."""
        block = self.gpu.find(block_hash)
        if block is not None:
            self.gpu.retract(block)
        self.cpu_tier.forget(block_hash)

    def _num_taken(self, seq: Sequence, prefix: list[FoundBlock]) -> int:
        """Blocks that can no longer be had by others once the sequence has started."""
        num_blocks = self._num_blocks_to_append(seq, seq.num_tokens)
        in_use = sum(f.is_on_gpu and not self.gpu.is_cached(f.block) for f in prefix)
        return num_blocks - in_use

    def can_append_slots(self, seq: Sequence, num_new_tokens: int) -> AllocStatus:
        """Says whether the sequence can have the blocks of its next tokens."""
        wanted = self._num_blocks_to_append(seq, num_new_tokens)
        if len(seq.block_table) + wanted > self.gpu.num_blocks:
            return AllocStatus.NEVER
        wanted += self.is_write_shared(seq)
        return AllocStatus.OK if wanted <= self.gpu.num_free else AllocStatus.LATER

    def append_slots(self, seq: Sequence, num_new_tokens: int) -> int | None:
        """Makes room for the next tokens; returns the block that replaces a shared one, if any."""
        block = self._unshare(seq)
        for _ in range(self._num_blocks_to_append(seq, num_new_tokens)):
            self.append_block(seq)
        return block

    def _num_blocks_to_append(self, seq: Sequence, num_new_tokens: int) -> int:
        num_tokens = seq.num_planned_tokens + num_new_tokens
        return max(self.sizes.num_blocks(num_tokens) - len(seq.block_table), 0)

    def append_block(self, seq: Sequence) -> int:
        """Adds a GPU block to the sequence's table and returns it; ask `gpu.num_free` first."""
        block = self.gpu.allocate()
        seq.block_table.append(block)
        return block

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Lets a new branch share all blocks of its parent."""
        child.block_table = list(parent.block_table)
        child.block_hashes = {size: list(names) for size, names in parent.block_hashes.items()}
        child.num_cached_blocks = parent.num_cached_blocks
        for block in child.block_table:
            self.gpu.share(block)

    def free(self, seq: Sequence) -> None:
        """Gives the sequence's blocks back, wherever they are."""
        if self.records_events and seq.is_finished:
            self._events.append(SequenceFreed(seq, seq.num_cached_blocks))
        pool = self.cpu if seq.status is SequenceStatus.SWAPPED else self.gpu
        pool.free_chain(seq.block_table)
        seq.block_table = []
        seq.num_cached_blocks = 0

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """Blocks that the group holds, each once however many of its sequences share it."""
        return len({block for seq in group.unfinished for block in seq.block_table})

    def distinct_blocks(self, group: SequenceGroup) -> dict[int, BlockHash | None]:
        """Returns each GPU block of the group once, and the hash of what it holds if that is
        public."""
        return distinct_blocks(group, self.gpu, block_size=self.block_size)

    def can_swap_out(self, group: SequenceGroup) -> bool:
        hashes = self.distinct_blocks(group).values()
        return self.cpu_tier.num_taken(hashes) <= self.cpu_tier.num_free

    def can_swap_in(self, group: SequenceGroup) -> AllocStatus:
        """Says whether the group's blocks fit on the GPU, with one more for each sequence."""
        blocks = distinct_blocks(group, self.cpu, block_size=self.block_size)
        hashes = {block_hash or block for block, block_hash in blocks.items()}  # equals become one
        grown = len(hashes) + len(group.unfinished)
        wanted = min(grown, max(len(hashes), self.sizes.most_blocks(group)))
        if wanted > self.gpu.num_blocks:
            return AllocStatus.NEVER
        if self.cpu_tier.is_arriving(blocks):
            return AllocStatus.LATER
        return self._has_room(wanted - self.gpu.num_used(h for h in hashes if isinstance(h, bytes)))

    def swap_out(self, group: SequenceGroup) -> None:
        """Moves the group's blocks to CPU swap, each once however many sequences share it."""
        self.cpu_tier.make_room(self.distinct_blocks(group).values())
        copies, left = move(
            group,
            self.gpu,
            self.cpu,
            block_size=self.block_size,
            finds=self.cpu_tier.is_cache,
        )
        self.copies.add_out(copies)
        self.gpu.free_chain(left)

    def swap_in(self, group: SequenceGroup) -> None:
        """Moves the group's blocks back to the GPU."""
        copies, left = move(group, self.cpu, self.gpu, block_size=self.block_size, finds=True)
        self.cpu_tier.unpin_after_step(Hold(self.cpu, left))
        self.copies.add_in(copies)

    def reset_prefix_cache(self) -> bool:
        """Forgets all cached blocks of both pools.

        Returns False, changing nothing, if a GPU block is in use or a sequence has one of the CPU
        pool.
        """
        swaps = self.cpu.num_owners() != self.cpu.num_holds()
        if swaps or self.gpu.num_free < self.gpu.num_blocks:
            return False
        self.forget_prefixes()
        return True

    def forget_prefixes(self, groups: Iterable[SequenceGroup] = ()) -> None:
        """Forgets what the blocks of both pools hold; those in use stay with their owners.

        Args:
            groups: those that hold blocks, in whichever pool. Where these go later, nothing finds
                what they hold now.
        """
        for pool in (self.gpu, self.cpu):
            pool.forget_hashes()
        for group in groups:
            for seq in group.unfinished:
                pool = self.cpu if seq.status is SequenceStatus.SWAPPED else self.gpu
                for block in seq.block_table[: seq.num_cached_blocks]:  # other blocks had the hash
                    pool.retract(block)

    def take_over(
        self, seq: Sequence, table: list[int], *, num_cached_blocks: int, private: Collection[int]
    ) -> None:
        """Gives a sequence that comes from another worker blocks that hold what it had there.

        Args:
            table: blocks that the caller keeps for it; they are the sequence's, too.
            num_cached_blocks: see `Sequence`.
            private: those of the blocks that nothing may find.
        """
        for block in table:
            self.gpu.share(block)
            if block in private:
                self.gpu.retract(block)
        seq.block_table, seq.num_cached_blocks = table, num_cached_blocks

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Asserts conservation on both devices, given every sequence that may have blocks."""
        on_gpu: Counter[int] = Counter()
        on_cpu: Counter[int] = Counter()
        for seq in sequences:
            (on_cpu if seq.status is SequenceStatus.SWAPPED else on_gpu).update(seq.block_table)
            assert seq.num_cached_blocks <= len(seq.block_table), seq.seq_id
        self.gpu.check(on_gpu)
        self.cpu.check(on_cpu)

    def is_write_shared(self, seq: Sequence) -> bool:
        """Says whether the next token goes to a block that another sequence reads."""
        return self._shared_write_index(seq) is not None

    def _shared_write_index(self, seq: Sequence) -> int | None:
        """Returns the index of the next token's block if another sequence reads that block."""
        index = seq.num_planned_tokens // self.block_size
        if index < len(seq.block_table) and self.gpu.is_shared(seq.block_table[index]):
            return index
        return None

    def _unshare(self, seq: Sequence) -> int | None:
        index = self._shared_write_index(seq)
        if index is None:
            return None
        copy = BlockCopy(src=seq.block_table[index], dst=self.gpu.allocate())
        if self.gpu.is_private(copy.src):
            self.gpu.retract(copy.dst)
        self.gpu.free(copy.src)
        seq.block_table[index] = copy.dst
        self.copies.add_within(copy)
        return copy.dst

"""Maps logical KV blocks of sequences to physical blocks on GPU and in CPU swap.

Pure bookkeeping: no tensors, no I/O. The methods add the copies that they call for to `copies`; the
worker makes them. Follows PagedAttention (Kwon et al., SOSP 2023, sections 4.3 to 4.5).
"""

from collections import Counter
from collections.abc import Collection, Iterable

from signalbox_contract.cache_groups import FULL, NO_BLOCK, num_token_groups, num_tokens_in
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import AllocStatus, BlockAllocator, BlockCopy, BlockHash
from signalbox_scheduler.kv.block_events import (
    BlockEvent,
    BlockRetracted,
    PrefixFound,
    SequenceFreed,
)
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.cpu_tier import CopyCosts, CpuTier, copies_between
from signalbox_scheduler.kv.group_sizes import GroupSizes
from signalbox_scheduler.kv.group_swaps import GroupSwaps
from signalbox_scheduler.kv.planned_copies import PlannedCopies
from signalbox_scheduler.kv.prefix_cache import FoundBlock, PrefixCache
from signalbox_scheduler.kv.running_states import RunningStates
from signalbox_scheduler.kv.window_blocks import WindowBlocks
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup, SequenceStatus


class BlockSpaceManager:
    """The block tables of one worker's sequences, and the pools that they draw from.

    Args:
        costs: decides which copies for the prefix cache are worth it.
    """

    def __init__(self, shape: CacheShape, *, costs: CopyCosts) -> None:
        self.block_size = shape.block_size
        self.groups = shape.groups
        self.num_groups = len(shape.groups)
        """Blocks in a row of a table, which are for the same tokens."""
        self._num_token_groups = num_token_groups(shape.groups)
        self.sizes = GroupSizes(
            block_size=shape.block_size,
            num_gpu_blocks=shape.num_gpu_blocks,
            max_model_len=shape.max_model_len,
            groups=shape.groups,
        )
        self.prefix_caching = shape.prefix_caching
        self.cpu_tier = CpuTier(shape, costs=costs)
        self.gpu = BlockAllocator(
            shape.num_gpu_blocks,
            num_reserved=shape.num_watermark_blocks,
            on_evict=self.cpu_tier.keep,
        )
        self.cpu = self.cpu_tier.pool
        self.copies = PlannedCopies(self.gpu, self.cpu_tier)
        """Copies of the plan in the making."""
        self.records_events = False
        """True if a reader takes the events; else none are recorded."""
        self._events: list[BlockEvent] = []
        self._prefix_cache = PrefixCache(shape, gpu=self.gpu, cpu_tier=self.cpu_tier)
        self._windows = WindowBlocks(shape, gpu=self.gpu)
        self.states = RunningStates(shape, gpu=self.gpu, prefix_cache=self._prefix_cache)
        self.swaps = GroupSwaps(
            gpu=self.gpu,
            cpu_tier=self.cpu_tier,
            copies=self.copies,
            prefix_cache=self._prefix_cache,
            states=self.states,
            sizes=self.sizes,
        )

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
        return self.gpu.room_for(self._num_taken(seq, prefix))

    def find_prefix(self, seq: Sequence) -> list[FoundBlock]:
        """Returns the first rows of a table for the sequence, for all tokens but the last at most.

        None for a prompt that has to be computed whatever is known of it.
        """
        return self._prefix_cache.find(seq)

    def num_tokens(self, num_entries: int) -> int:
        """Returns the tokens for which so many entries of a table are, of all groups."""
        return num_entries * self.block_size // self.num_groups

    def private_hash(self, seq: Sequence, index: int) -> BlockHash:
        """Returns a name of what a block of the sequence's table holds that nothing may find."""
        return self._prefix_cache.private_hash(seq, index)

    def prefix_hashes(self, seq: Sequence, start: int, end: int) -> list[BlockHash]:
        """Returns the names of what the entries [start, end) of its table are to hold."""
        return [self._prefix_cache.name(seq, index) for index in range(start, end)]

    def estimate_prefix(self, seq: Sequence) -> int:
        """Returns how many of the sequence's leading rows are here, by looking at a few."""
        return self._prefix_cache.estimate(seq)

    def can_start(self, seq: Sequence, prefix: list[FoundBlock]) -> bool:
        """Says whether a sequence without blocks fits, given blocks that it may share."""
        return self._num_taken(seq, prefix) <= self.gpu.num_free

    def start(self, seq: Sequence, prefix: list[FoundBlock]) -> None:
        """Gives a sequence its first blocks: those of `prefix`, and new ones for its other tokens.

        The sequence counts the tokens of `prefix` as computed already. The blocks of windows and
        states come with the steps that compute their tokens.
        """
        for found in prefix:  # before a new block is taken, which might be one of these
            if not found.is_on_gpu:
                self.cpu_tier.pin([found.block], arriving=False)
            elif found.block != NO_BLOCK:
                self.gpu.share(found.block)
        for index, found in enumerate(prefix):
            block = found.block
            if not found.is_on_gpu:
                sources = self.cpu.blocks_of(found.block)
                name = self._prefix_cache.name(seq, index)
                block = self.gpu.obtain(name, num_blocks=len(sources)).block
                self.copies.add_in(copies_between(sources, self.gpu.blocks_of(block)))
            seq.block_table.append(block)
        self.states.announce(seq.block_table)
        num_rows = len(prefix) // self.num_groups
        self._prefix_cache.record_shared(seq, num_rows)
        if self.states.num_blocks:
            self.states.begin(seq, num_rows)
        if self.records_events and prefix:
            self._events.append(PrefixFound(seq, num_rows))
        for _ in range(num_rows, self.sizes.num_rows(seq.num_tokens)):
            seq.block_table += [
                self.gpu.allocate() if one.kind == FULL else NO_BLOCK for one in self.groups
            ]

    def cache_blocks(self, seq: Sequence) -> None:
        """Lets whole computed blocks be found, and frees those behind a window, and states before
        the newest; to be called when their tokens are accepted, since no step computes again what
        is before them."""
        self._prefix_cache.cache_blocks(seq)
        if self._windows.groups:
            self._windows.give_up(seq)
        if self.states.num_blocks:
            self.states.give_up(seq)

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
        num_rows = self.sizes.num_rows(seq.num_tokens)
        num_blocks = self.sizes.most_of_sequence(num_rows)
        on_gpu = (f.block for f in prefix if f.is_on_gpu and f.block != NO_BLOCK)
        in_use = (block for block in on_gpu if not self.gpu.is_cached(block))
        return num_blocks - self.gpu.num_blocks_of(in_use)

    def can_append_slots(self, seq: Sequence, num_new_tokens: int) -> AllocStatus:
        """Says whether the sequence can have the blocks of its next tokens."""
        wanted = self._num_to_append(seq, num_new_tokens)
        copied = self.gpu.num_blocks_of(self._shared_writes(seq).values())
        if wanted + copied <= self.gpu.num_free:
            return AllocStatus.OK
        fits = self._num_held([seq]) + wanted <= self.gpu.num_blocks
        # Answers to steps in flight free blocks behind windows, and states.
        frees = seq.num_inflight_tokens and not self.sizes.keeps_all
        return AllocStatus.LATER if fits or frees else AllocStatus.NEVER

    def most_new_tokens(self, seq: Sequence, num_new_tokens: int) -> int:
        """Returns how many of its next tokens a sequence can have the blocks of now."""
        if self.sizes.keeps_all:  # it has all since it started
            return num_new_tokens
        wanted = self._num_to_append(seq, num_new_tokens)
        while num_new_tokens and wanted > self.gpu.num_free:
            per_row = max(1, len(self._windows.groups))
            over = -(-(wanted - self.gpu.num_free) // per_row) * self.block_size
            num_new_tokens = max(0, num_new_tokens - over)
            wanted = self._num_to_append(seq, num_new_tokens)
        return num_new_tokens

    def append_slots(self, seq: Sequence, num_new_tokens: int) -> range:
        """Makes room for the next tokens; returns the entries that it replaces in the table."""
        start, planned = len(seq.block_table), seq.num_planned_tokens
        changed = self._unshare(seq) + self._windows.missing(seq, num_new_tokens)
        for index in changed:
            if seq.block_table[index] == NO_BLOCK:
                seq.block_table[index] = self.gpu.allocate()
        end = self.sizes.num_rows(planned + num_new_tokens) * self.num_groups
        for _ in range(start, end, self.num_groups):
            self._append_row(seq)
        if self.states.num_blocks:
            reserved = self.gpu.num_reserved
            placed = self.states.advance(seq, planned, num_new_tokens, num_reserved=reserved)
            changed += [index for index in placed if index < start]
        return range(min(changed), max(changed) + 1) if changed else range(0)

    def _num_to_append(self, seq: Sequence, num_new_tokens: int) -> int:
        """Returns the blocks that a sequence lacks for its next tokens."""
        if not num_new_tokens:
            return 0
        planned = seq.num_planned_tokens
        num_rows = self.sizes.num_rows(planned + num_new_tokens)
        lacking = max(num_rows - len(seq.block_table) // self.num_groups, 0)
        wanted = lacking * self._num_token_groups + len(self._windows.missing(seq, num_new_tokens))
        return wanted + self.states.num_missing(seq, planned)

    def append_rows(self, seqs: list[Sequence]) -> bool:
        """Adds a row of GPU blocks to the table of each sequence that has filled its own.

        Returns False, having changed nothing, if there are too few.
        """
        num_blocks, states = self._num_token_groups, self.states
        wanted = len(seqs) * num_blocks
        if states.num_blocks:
            wanted += sum(states.num_missing(seq, self._num_in_table(seq)) for seq in seqs)
        if wanted > self.gpu.num_free:
            return False
        for seq in seqs:
            self._append_row(seq)
            if states.num_blocks:
                planned = self._num_in_table(seq) - self.block_size
                wanted -= num_blocks + states.num_missing(seq, planned)
                reserved = wanted + self.gpu.num_reserved
                states.advance(seq, planned, 1, num_reserved=reserved)
        return True

    def _append_row(self, seq: Sequence) -> None:
        seq.block_table += [self.gpu.allocate() for _ in range(self._num_token_groups)]
        if self.states.num_blocks:
            seq.block_table.append(NO_BLOCK)

    def _num_in_table(self, seq: Sequence) -> int:
        return len(seq.block_table) // self.num_groups * self.block_size

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Lets a new branch share all blocks of its parent."""
        child.block_table = list(parent.block_table)
        child.block_hashes = {size: list(names) for size, names in parent.block_hashes.items()}
        child.num_cached_blocks = parent.num_cached_blocks
        if self.states.num_blocks:
            self.states.fork(parent, child)
        for block in held(child.block_table):
            self.gpu.share(block)

    def free(self, seq: Sequence) -> None:
        """Gives the sequence's blocks back, wherever they are."""
        if self.records_events and seq.is_finished:
            self._events.append(SequenceFreed(seq, seq.num_cached_blocks))
        pool = self.cpu if seq.status is SequenceStatus.SWAPPED else self.gpu
        pool.eviction.note_freed(seq)
        if self.states.num_blocks:
            self.states.free(seq, pool)
        else:
            pool.free_chain(held(seq.block_table))
        seq.block_table = []
        seq.num_cached_blocks = 0

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """Blocks that the group holds, each once however many of its sequences share it."""
        return self._num_held(group.unfinished)

    def states_of(self, group: SequenceGroup) -> set[int]:
        """Returns the first block of each state of the group."""
        return {
            block
            for seq in group.unfinished
            for index, block in enumerate(seq.block_table)
            if block != NO_BLOCK and self.states.is_entry(index)
        }

    def num_distinct_tokens(self, group: SequenceGroup) -> int:
        """Tokens for which the group holds blocks, each once however many of its sequences share
        it."""
        tables = [seq.block_table for seq in group.unfinished]
        blocks = {b for table in tables for i, b in enumerate(table) if not self.states.is_entry(i)}
        return num_tokens_in(len(blocks - {NO_BLOCK}), self.groups, block_size=self.block_size)

    def blocks_in(self, table: list[int], *, is_swapped: bool = False) -> list[int]:
        """Returns the blocks of a table, with all blocks of its states.

        Args:
            is_swapped: whether they are of the CPU pool.
        """
        blocks = held(table)
        if self.states.num_blocks:
            pool = self.cpu if is_swapped else self.gpu
            blocks = [block for head in blocks for block in pool.blocks_of(head)]
        return blocks

    def _num_held(self, seqs: Iterable[Sequence]) -> int:
        return self.gpu.num_blocks_of({b for seq in seqs for b in held(seq.block_table)})

    def distinct_blocks(self, group: SequenceGroup) -> dict[int, BlockHash | None]:
        """Returns each GPU block of the group once, and the hash of what it holds if that is
        public."""
        return self._prefix_cache.distinct_blocks(group, self.gpu)

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
                # Other blocks had the hash.
                for block in held(seq.block_table[: seq.num_cached_blocks * self.num_groups]):
                    pool.retract(block)

    def take_over(
        self, seq: Sequence, table: list[int], *, num_cached_blocks: int, private: Collection[int]
    ) -> None:
        """Gives a sequence that comes from another worker blocks that hold what it had there.

        Args:
            table: its blocks, which the caller keeps for it; they are the sequence's, too.
            num_cached_blocks: see `Sequence`.
            private: those of the blocks that nothing may find.
        """
        for block in held(table):
            self.gpu.share(block)
            if block in private:
                self.gpu.retract(block)
        seq.block_table, seq.num_cached_blocks = table, num_cached_blocks
        if self.states.num_blocks:
            self.states.take_over(seq)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Asserts conservation on both devices, given every sequence that may have blocks."""
        on_gpu: Counter[int] = Counter()
        on_cpu: Counter[int] = Counter()
        for seq in sequences:
            blocks = on_cpu if seq.status is SequenceStatus.SWAPPED else on_gpu
            blocks.update(held(seq.block_table))
            assert seq.num_cached_blocks * self.num_groups <= len(seq.block_table), seq.seq_id
            is_counted = seq.decode_index < 0  # the decode batch has the others' counters
            if is_counted and seq.block_table and seq.status is not SequenceStatus.FINISHED:
                self._windows.check(seq)
                self.states.check(seq)
        self.gpu.check(on_gpu)
        self.cpu.check(on_cpu)

    def is_write_shared(self, seq: Sequence) -> bool:
        """Says whether the next token goes to a block that another sequence reads."""
        return bool(self._shared_writes(seq))

    def _shared_writes(self, seq: Sequence) -> dict[int, int]:
        """Returns the entries of the next token's blocks that another sequence reads, and the
        blocks."""
        start = seq.num_planned_tokens // self.block_size * self.num_groups
        row = seq.block_table[start : start + self.num_groups]
        return {
            index: block
            for index, block in enumerate(row, start)
            if block != NO_BLOCK and self.gpu.is_shared(block)
        }

    def _unshare(self, seq: Sequence) -> list[int]:
        shared = self._shared_writes(seq)
        for index, block in shared.items():
            is_state = self.states.is_entry(index)
            copied = self.states.take() if is_state else self.gpu.allocate()
            if self.gpu.is_private(block):
                self.gpu.retract(copied)
            for pair in zip(self.gpu.blocks_of(block), self.gpu.blocks_of(copied), strict=True):
                self.copies.add_within(BlockCopy(*pair))
            self.gpu.free(block)
            seq.block_table[index] = copied
        return list(shared)

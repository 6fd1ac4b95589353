"""Maps logical KV blocks of sequences to physical blocks on GPU and in CPU swap.

Pure bookkeeping: no tensors, no I/O. A method that moves data returns the copies to make; the
worker makes them. Follows PagedAttention (Kwon et al., SOSP 2023, sections 4.3 to 4.5).
"""

import bisect
from collections import Counter
from collections.abc import Iterable
from enum import Enum, auto
from typing import NamedTuple

from scheduler_svc.block_allocator import BlockAllocator
from scheduler_svc.prefix import next_hash, root_hash
from scheduler_svc.sequence import Sequence, SequenceGroup, SequenceStatus


class AllocStatus(Enum):
    """Whether blocks can be had now, after others have freed some, or not at all."""

    OK = auto()
    LATER = auto()
    NEVER = auto()


class BlockCopy(NamedTuple):
    """Copy physical block `src` to physical block `dst`."""

    src: int
    dst: int


class BlockSpaceManager:
    """The block tables of one worker's sequences, and the pools that they draw from.

    Args:
        block_size: tokens in a block.
        num_gpu_blocks, num_cpu_blocks: sizes of the pools.
        num_watermark_blocks: GPU blocks that admission leaves free, so that the sequences which
            run already can grow for a while before anybody is preempted.
        max_model_len: longest sequence in tokens.
        prefix_caching: whether whole blocks may be found by what they hold, in use or not.
    """

    def __init__(
        self,
        *,
        block_size: int,
        num_gpu_blocks: int,
        num_cpu_blocks: int,
        num_watermark_blocks: int = 0,
        max_model_len: int,
        prefix_caching: bool = True,
    ) -> None:
        self.block_size = block_size
        self.gpu = BlockAllocator(num_gpu_blocks)
        self.cpu = BlockAllocator(num_cpu_blocks)
        self._num_watermark_blocks = num_watermark_blocks
        self._max_model_len = max_model_len
        self._prefix_caching = prefix_caching

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def num_prefix_tokens(self, group: SequenceGroup) -> int:
        """Tokens of the prompt in whole blocks, which branches share for good."""
        return group.num_prompt_tokens // self.block_size * self.block_size

    def longest(self, group: SequenceGroup) -> int:
        """Length in tokens at which a sequence of the group has its last."""
        return min(group.num_prompt_tokens + group.max_tokens, self._max_model_len)

    def most_blocks(self, group: SequenceGroup) -> int:
        """Blocks that the group takes at its longest, all branches, sharing what they must."""
        # The last token sampled is never computed.
        num_blocks = self.num_blocks(self.longest(group) - 1)
        shared = self.num_prefix_tokens(group) // self.block_size
        return shared + group.num_branches * (num_blocks - shared)

    def can_ever_hold(self, group: SequenceGroup) -> bool:
        return self.most_blocks(group) <= self.gpu.num_blocks

    def can_allocate(self, group: SequenceGroup) -> AllocStatus:
        """Says whether the group's first sequence fits: all its known tokens."""
        if not self.can_ever_hold(group):
            return AllocStatus.NEVER
        seq = group.unfinished[0]
        # Alone on the worker a group is past the watermark's protection: nobody else grows.
        spare = self.gpu.num_free - self._num_taken(seq, self.find_prefix(seq))
        alone = self.gpu.num_free == self.gpu.num_blocks
        enough = spare >= (0 if alone else self._num_watermark_blocks)
        return AllocStatus.OK if enough else AllocStatus.LATER

    def find_prefix(self, seq: Sequence) -> list[int]:
        """Returns the blocks that hold the sequence's first tokens, all but the last at most.

        None for a prompt that has to be computed whatever is known of it.
        """
        found: list[int] = []
        if not self._prefix_caching or seq.group.wants_prompt_logprobs:
            return found
        for index in range((seq.num_tokens - 1) // self.block_size):
            block = self.gpu.find(self._hash(seq, index))
            if block is None:
                break
            found.append(block)
        return found

    def estimate_prefix(self, seq: Sequence) -> int:
        """Returns how many of the sequence's leading blocks are here, by looking at a few.

        A block is rarely here without those before it, as `free` sees to it.
        """
        if not self._prefix_caching:
            return 0
        bound, most = 1, (seq.num_tokens - 1) // self.block_size
        while bound <= most and self._is_found(seq, bound - 1):
            bound *= 2
        return bisect.bisect_left(
            range(min(bound, most)), True, key=lambda index: not self._is_found(seq, index)
        )

    def _is_found(self, seq: Sequence, index: int) -> bool:
        return self.gpu.find(self._hash(seq, index)) is not None

    def can_start(self, seq: Sequence, prefix: list[int]) -> bool:
        """Says whether a sequence without blocks fits, given blocks that it may share."""
        return self._num_taken(seq, prefix) <= self.gpu.num_free

    def start(self, seq: Sequence, prefix: list[int]) -> None:
        """Gives a sequence its first blocks: those of `prefix`, computed already, and new ones."""
        for block in prefix:
            self.gpu.share(block)
        seq.block_table = list(prefix)
        seq.num_computed_tokens = len(prefix) * self.block_size
        self.append_slots(seq, seq.num_remaining_tokens)

    def publish(self, seq: Sequence) -> None:
        """Lets whole computed blocks be found; to be called when their tokens are accepted."""
        if not self._prefix_caching:
            return
        num_whole_blocks = seq.num_computed_tokens // self.block_size
        for index in range(seq.num_published_blocks, num_whole_blocks):
            self.gpu.publish(seq.block_table[index], self._hash(seq, index))
        seq.num_published_blocks = num_whole_blocks

    def retract(self, seq: Sequence) -> None:
        """Keeps the blocks of a sequence that went wrong from being found."""
        for block in seq.block_table:
            self.gpu.retract(block)

    def _num_taken(self, seq: Sequence, prefix: list[int]) -> int:
        """Blocks that can no longer be had by others once the sequence has started."""
        num_new = self.num_blocks(seq.num_tokens) - len(prefix)
        return num_new + sum(self.gpu.is_cached(block) for block in prefix)

    def _hash(self, seq: Sequence, index: int) -> bytes:
        hashes = seq.block_hashes.setdefault(self.block_size, [])
        while len(hashes) <= index:
            start = len(hashes) * self.block_size
            previous = hashes[-1] if hashes else _root_hash(seq.group)
            hashes.append(next_hash(previous, seq.tokens(start, start + self.block_size)))
        return hashes[index]

    def can_append_slots(self, seq: Sequence, num_new_tokens: int) -> AllocStatus:
        """Says whether the sequence can have the blocks of its next tokens: OK or LATER."""
        num_blocks = self.num_blocks(seq.num_planned_tokens + num_new_tokens)
        wanted = max(num_blocks - len(seq.block_table), 0) + self.is_write_shared(seq)
        return AllocStatus.OK if wanted <= self.gpu.num_free else AllocStatus.LATER

    def append_slots(self, seq: Sequence, num_new_tokens: int) -> BlockCopy | None:
        """Makes room for the next tokens; returns the copy that a shared block calls for."""
        copy = self._unshare(seq)
        wanted = self.num_blocks(seq.num_planned_tokens + num_new_tokens)
        while len(seq.block_table) < wanted:
            self.append_block(seq)
        return copy

    def append_block(self, seq: Sequence) -> int:
        """Adds a GPU block to the sequence's table and returns it; ask `gpu.num_free` first."""
        block = self.gpu.allocate()
        seq.block_table.append(block)
        return block

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Lets a new branch share all blocks of its parent."""
        child.block_table = list(parent.block_table)
        child.block_hashes = {size: list(names) for size, names in parent.block_hashes.items()}
        child.num_published_blocks = parent.num_published_blocks
        for block in child.block_table:
            self.gpu.share(block)

    def free(self, seq: Sequence) -> None:
        """Gives the sequence's blocks back, wherever they are."""
        pool = self.cpu if seq.status is SequenceStatus.SWAPPED else self.gpu
        for block in reversed(seq.block_table):  # of a chain the end is forgotten first
            pool.free(block)
        seq.block_table = []
        seq.num_sent_blocks = seq.num_published_blocks = 0

    def num_distinct_blocks(self, group: SequenceGroup) -> int:
        """Blocks that the group holds, each once however many of its sequences share it."""
        return len(_distinct_blocks(group))

    def can_swap_out(self, group: SequenceGroup) -> bool:
        return self.num_distinct_blocks(group) <= self.cpu.num_free

    def can_swap_in(self, group: SequenceGroup) -> AllocStatus:
        """Says whether the group's blocks fit on the GPU, with one more for each sequence."""
        wanted = self.num_distinct_blocks(group) + len(group.unfinished)
        if min(wanted, self.most_blocks(group)) > self.gpu.num_blocks:
            return AllocStatus.NEVER
        alone = self.gpu.num_free == self.gpu.num_blocks
        enough = self.gpu.num_free - wanted >= (0 if alone else self._num_watermark_blocks)
        return AllocStatus.OK if enough or alone else AllocStatus.LATER

    def swap_out(self, group: SequenceGroup) -> list[BlockCopy]:
        """Moves the group's blocks to CPU swap, each once however many sequences share it."""
        return _move(group, self.gpu, self.cpu)

    def swap_in(self, group: SequenceGroup) -> list[BlockCopy]:
        """Moves the group's blocks back to the GPU."""
        return _move(group, self.cpu, self.gpu)

    def check(self, sequences: Iterable[Sequence]) -> None:
        """Asserts conservation on both devices, given every sequence that may hold blocks."""
        on_gpu: Counter[int] = Counter()
        on_cpu: Counter[int] = Counter()
        for seq in sequences:
            (on_cpu if seq.status is SequenceStatus.SWAPPED else on_gpu).update(seq.block_table)
        self.gpu.check(dict(on_gpu))
        self.cpu.check(dict(on_cpu))

    def is_write_shared(self, seq: Sequence) -> bool:
        """Says whether the next token goes to a block that somebody else reads."""
        return self._shared_write_index(seq) is not None

    def _shared_write_index(self, seq: Sequence) -> int | None:
        """Index of the block that the next token goes to, if somebody else reads that block."""
        index = seq.num_planned_tokens // self.block_size
        if index < len(seq.block_table) and self.gpu.is_shared(seq.block_table[index]):
            return index
        return None

    def _unshare(self, seq: Sequence) -> BlockCopy | None:
        index = self._shared_write_index(seq)
        if index is None:
            return None
        copy = BlockCopy(src=seq.block_table[index], dst=self.gpu.allocate())
        self.gpu.free(copy.src)
        seq.block_table[index] = copy.dst
        return copy


def _root_hash(group: SequenceGroup) -> bytes:
    return root_hash(tenant=group.tenant, cache_salt=group.cache_salt)


def _distinct_blocks(group: SequenceGroup) -> set[int]:
    return {block for seq in group.unfinished for block in seq.block_table}


def _move(group: SequenceGroup, source: BlockAllocator, target: BlockAllocator) -> list[BlockCopy]:
    moved: dict[int, int] = {}  # physical block on the source: its new place
    for seq in group.unfinished:
        for index, block in enumerate(seq.block_table):
            if block in moved:
                target.share(moved[block])
            else:
                moved[block] = target.allocate()
            source.free(block)
            seq.block_table[index] = moved[block]
        seq.num_sent_blocks = seq.num_published_blocks = 0
    return [BlockCopy(src, dst) for src, dst in moved.items()]

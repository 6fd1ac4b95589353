"""Decides which snapshots of recurrent layers are worth their blocks, and what is evicted first.

Blocks that no snapshot reaches go first, with snapshots that a later one of their chain replaces;
then others by use. A snapshot goes before the blocks that only it reaches. These are of no use
without it and follow at once, since blocks are evicted in the order in which they were freed.
"""

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import BlockAllocator, BlockHash
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.prefix_cache import PrefixCache
from signalbox_scheduler.requests.sequence_group import Sequence

LEAST_SHARE = 8
"""A sequence's last snapshot is evicted by use if it saves as many tokens as this part of its
blocks could hold, else first: an answer of a few words is computed sooner than the prefixes that
the state would displace."""


class Snapshots:
    """Knowledge of the states that sequences of one worker leave and find, by their names: it holds
    of a state that is evicted and comes back, or is fetched."""

    def __init__(
        self, shape: CacheShape, *, gpu: BlockAllocator, prefix_cache: PrefixCache
    ) -> None:
        self._width = len(shape.groups)
        self._block_size = shape.block_size
        self._gpu = gpu
        self._prefix_cache = prefix_cache
        self._branches: dict[BlockHash, int] = {}
        """Rows of states at which requests have left a cached prefix."""
        self._branched_at: dict[Sequence, set[int]] = {}
        """Rows of such states of each sequence: the one that it found, and one that it leaves."""
        self._before: dict[BlockHash, int] = {}
        """Row of the snapshot before an ended sequence's last one, by the name of the last."""

    def begin(self, seq: Sequence, num_found: int) -> None:
        """Records that a sequence starts behind so many found rows, and whether a state is all that
        it lacks for more."""
        num_in_full_groups = self._prefix_cache.num_in_full_groups(seq)
        rows = {num_in_full_groups - 1} if num_in_full_groups > num_found else set()
        found = self._name(seq, num_found - 1) if num_found else b""
        if found in self._branches:
            rows.add(num_found - 1)
            self._note(self._branches, found, num_found - 1)
        self._branched_at[seq] = rows
        before = self._before.pop(found, -1)
        replaced = self._find(seq, before) if before >= 0 else None
        if replaced is not None and before not in self.kept_rows(seq):
            self._gpu.touch(replaced, evict_first=True)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        self._branched_at[child] = self._branched_at.get(parent, set())

    def forget(self, seq: Sequence) -> None:
        """Forgets a sequence that has no blocks any more."""
        self._branched_at.pop(seq, None)

    def record_left(self, seq: Sequence, row: int) -> None:
        """Records that a sequence leaves a state behind a row."""
        if row in self._branched_at.get(seq, ()):  # none of one that came from another worker
            self._note(self._branches, self._name(seq, row), row)

    def _note(self, rows: dict[BlockHash, int], name: BlockHash, row: int) -> None:
        """Adds a row as the newest; of more than the pool has blocks the oldest is forgotten."""
        rows.pop(name, None)
        rows[name] = row
        if len(rows) > self._gpu.num_blocks:
            del rows[next(iter(rows))]

    def kept_rows(self, seq: Sequence) -> set[int]:
        """Returns the rows whose snapshots no later one of the sequence replaces.

        They are the last ones before the positions that the request names, or else before its last
        token, and those at which sequences have left a cached prefix.
        """
        named = seq.group.request.snapshot_positions or (seq.group.num_prompt_tokens - 1,)
        rows = {position // self._block_size - 1 for position in named}
        return (rows | self._branched_at.get(seq, set())) - {-1}

    def free(self, seq: Sequence) -> None:
        """Takes a sequence off the owners of its blocks, in the order of eviction."""
        table, width, gpu = seq.block_table, self._width, self._gpu
        rows = (row for row in self.kept_rows(seq) if row < seq.num_cached_blocks)
        kept = {row: found for row in rows if (found := self._find(seq, row)) is not None}
        last = self._last_of_use(seq, max(kept, default=-1))
        # Snapshots of others may reach what was cached when the sequence began.
        end = (max((last, *kept, *self._branched_at.get(seq, ()))) + 1) * width
        for block in held(table[end:]):
            gpu.free(block, evict_first=True)
        for row in sorted(kept, reverse=True):
            gpu.free_chain(held(table[(row + 1) * width : end]))
            gpu.touch(kept[row])  # before the blocks that it reaches, which are freed next
            end = min(end, (row + 1) * width)
        gpu.free_chain(held(table[:end]))

    def _last_of_use(self, seq: Sequence, before: int) -> int:
        """Returns the row of a sequence's last snapshot, or of the one before it if the last saves
        too little; notes which one that is."""
        heads = seq.block_table[self._width - 1 : seq.num_cached_blocks * self._width : self._width]
        last = max((row for row, head in enumerate(heads) if head != NO_BLOCK), default=-1)
        if last > before >= 0:
            self._note(self._before, self._name(seq, last), before)
            if (last - before) * LEAST_SHARE < len(self._gpu.blocks_of(heads[last])):
                return before
        return last

    def _name(self, seq: Sequence, row: int) -> BlockHash:
        return self._prefix_cache.name(seq, (row + 1) * self._width - 1)

    def _find(self, seq: Sequence, row: int) -> int | None:
        return self._gpu.find(self._name(seq, row))

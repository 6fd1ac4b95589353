"""Places the states of recurrent layers in the block tables of one worker's sequences.

A sequence goes on in its state from row to row. Where a later request may begin, it goes on in
another state and leaves the earlier one behind, a snapshot, so that nothing is copied. A snapshot
is a matter of room: without it, the state moves along.
"""

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.kv.prefix_cache import PrefixCache
from signalbox_scheduler.kv.snapshots import Snapshots
from signalbox_scheduler.requests.sequence_group import Sequence

SNAPSHOT_TOKENS = 2048
"""Tokens of a prompt after each of which a snapshot is left in blocks that hold nothing: those of a
hybrid model take as much as some 1,500 of its tokens, so that they take no more than the tokens."""


class RunningStates:
    """The entries of the last group of tables, each of which names a state by its first block."""

    def __init__(
        self, shape: CacheShape, *, gpu: BlockAllocator, prefix_cache: PrefixCache
    ) -> None:
        self.num_blocks = shape.groups[-1].state_blocks
        """Blocks of a state; 0 if there are none."""
        self.leaves_snapshots = shape.prefix_caching and self.num_blocks > 0
        """True if there are states, and prefixes are looked for."""
        self.new: dict[int, list[int]] = {}
        """Blocks of the states that the next step names to the worker, by the first."""
        self._width = len(shape.groups)
        self._block_size = shape.block_size
        self._gpu = gpu
        self._snapshots = Snapshots(shape, gpu=gpu, prefix_cache=prefix_cache)
        self._held: dict[Sequence, list[int]] = {}
        """Rows of each sequence's snapshots, ascending; its running state is not one."""

    def begin(self, seq: Sequence, num_found: int) -> None:
        """Records that a sequence starts behind so many found rows."""
        self._held[seq] = [num_found - 1] if num_found else []
        self._snapshots.begin(seq, num_found)

    def take_over(self, seq: Sequence) -> None:
        """Records a sequence that comes from another worker, with its running state alone."""
        self._held[seq] = []
        self.announce(seq.block_table)

    def fork(self, parent: Sequence, child: Sequence) -> None:
        """Records that a new branch shares the snapshots of its parent."""
        self._held[child] = list(self._held[parent])
        self._snapshots.fork(parent, child)

    def free(self, seq: Sequence, pool: BlockAllocator) -> None:
        """Takes a sequence off the owners of its blocks."""
        if self.leaves_snapshots and pool is self._gpu:
            self._snapshots.free(seq)
        else:
            pool.free_chain(held(seq.block_table))
        self._held.pop(seq, None)
        self._snapshots.forget(seq)

    def num_missing(self, seq: Sequence, num_planned: int) -> int:
        """Returns the blocks that a sequence needs to go on behind so many tokens, without those
        of a state that is shared within a row, which is copied."""
        if num_planned % self._block_size or not self.num_blocks:
            return 0
        if num_planned and seq.is_on_worker:
            head = seq.block_table[self._entry(num_planned // self._block_size - 1)]
            if not self._gpu.is_shared(head):
                return 0
        return self.num_blocks

    def whole_rows(self, seq: Sequence, num_new_tokens: int) -> int:
        """Returns how many of these tokens a chunk of a prompt takes, so that the next one does not
        begin within a row, behind which it could leave no state."""
        is_cut = num_new_tokens < seq.num_remaining_tokens
        if not is_cut or not self.leaves_snapshots:
            return num_new_tokens
        over = (seq.num_planned_tokens + num_new_tokens) % self._block_size
        return num_new_tokens - over if over < num_new_tokens else num_new_tokens

    def advance(
        self, seq: Sequence, num_planned: int, num_new_tokens: int, *, num_reserved: int
    ) -> list[int]:
        """Places the states behind the next tokens; returns the entries to tell the worker of.

        That of the row before the tokens is not one, though a state that moves along leaves it: the
        step reads the state there by the worker's own table.

        Args:
            num_planned: tokens before them.
            num_reserved: free blocks that no snapshot may take.
        """
        size, table, gpu = self._block_size, seq.block_table, self._gpu
        row, last = (num_planned - 1) // size, (num_planned + num_new_tokens - 1) // size
        is_boundary = num_planned > 0 and num_planned % size == 0
        # In the middle of a row, the state that is read is not the one behind the row.
        snapshots = self._rows_to_leave(seq, row if is_boundary else row + 1, last)
        head = table[self._entry(row)] if num_planned else NO_BLOCK
        # A table that is sent in full has the state that is read.
        must_stay = head == NO_BLOCK or gpu.is_shared(head) or not seq.is_on_worker
        if must_stay and head != NO_BLOCK and not is_boundary:
            gpu.retract(head)  # nothing may find it by the name of its row
        is_wanted = row in snapshots
        rows, changed = self._held[seq], []
        for after in [*snapshots, last]:
            if after <= row:
                continue
            has_room = gpu.num_free - num_reserved >= self.num_blocks
            if must_stay or (is_wanted and has_room):
                if head != NO_BLOCK and row not in rows:
                    rows.append(row)
                    self._snapshots.record_left(seq, row)
                head = self.take()
            else:
                gpu.forget_hash(head)
                table[self._entry(row)] = NO_BLOCK
            table[self._entry(after)] = head
            changed.append(self._entry(after))
            row, is_wanted, must_stay = after, True, False
        return changed

    def _rows_to_leave(self, seq: Sequence, first: int, last: int) -> list[int]:
        """Returns the rows in [first, last) behind which a state is to stay, ascending.

        They are `Snapshots.kept_rows`, the boundaries from the newest one behind the prompt on, and
        each `SNAPSHOT_TOKENS` while there is room.
        """
        if first >= last or not self.leaves_snapshots or seq.group.is_private:
            return []
        newest = (seq.num_tokens - 1) // self._block_size - 1
        rows = {*range(max(first, newest, self._first_behind_prompt(seq)), last)}
        rows.update(row for row in self._snapshots.kept_rows(seq) if first <= row < last)
        step = max(1, SNAPSHOT_TOKENS // self._block_size)
        regular = range(first + -(first + 1) % step, last, step)
        if self._gpu.num_empty > (len(regular) + 1) * self.num_blocks:
            rows.update(regular)
        return sorted(rows)

    def _first_behind_prompt(self, seq: Sequence) -> int:
        return (seq.group.num_prompt_tokens - 1) // self._block_size

    def give_up(self, seq: Sequence) -> None:
        """Frees the snapshots before the newest one behind accepted tokens.

        Those that this one replaces are evicted first.
        """
        last = seq.num_computed_tokens // self._block_size - 1
        kept, table = self._snapshots.kept_rows(seq), seq.block_table
        heads = {row: table[self._entry(row)] for row in self._held[seq] if row <= last}
        partial = [row for row, head in heads.items() if self._gpu.is_private(head)]
        stays = last in kept or last >= self._first_behind_prompt(seq)
        if last < 0 or not stays or table[self._entry(last)] == NO_BLOCK:
            last = max(heads.keys() - partial, default=-1)
        for row in heads:
            # A step that is planned may read the state behind all accepted tokens.
            is_read = (row + 1) * self._block_size >= seq.num_computed_tokens
            if row < last or (row in partial and not is_read):
                self._free(seq, row, kept)

    def yield_snapshots(self, seq: Sequence) -> None:
        """Frees the snapshots of a running sequence that no step in flight reads."""
        kept = self._snapshots.kept_rows(seq)
        for row in list(self._held.get(seq, ())):
            if (row + 1) * self._block_size < seq.num_computed_tokens:
                self._free(seq, row, kept)

    def _free(self, seq: Sequence, row: int, kept: set[int]) -> None:
        self._held[seq].remove(row)
        self._gpu.free(seq.block_table[self._entry(row)], evict_first=row not in kept)
        seq.block_table[self._entry(row)] = NO_BLOCK

    def take(self) -> int:
        """Takes the blocks of a state and announces them; returns the first."""
        head = self._gpu.allocate_state(self.num_blocks)
        self.new[head] = self._gpu.blocks_of(head)
        return head

    def is_entry(self, index: int) -> bool:
        """Says whether an entry of a table is of a state."""
        return self.num_blocks > 0 and (index + 1) % self._width == 0

    def announce(self, table: list[int]) -> None:
        """Lets the next step say which blocks the states have in a table that is new to the
        worker."""
        if self.num_blocks:
            heads = held(table[self._width - 1 :: self._width])
            self.new.update((head, self._gpu.blocks_of(head)) for head in heads)

    def take_new(self) -> list[list[int]]:
        """Returns the blocks of the states that the next step names, once."""
        new, self.new = self.new, {}
        return list(new.values())

    def check(self, seq: Sequence) -> None:
        """Asserts that a sequence has its snapshots, and the state that its next token reads."""
        planned = seq.num_planned_tokens
        if planned and self.num_blocks:
            row = (planned - 1) // self._block_size
            entries = seq.block_table[self._width - 1 :: self._width]
            assert entries[row] != NO_BLOCK, f"{seq.seq_id}: its state is missing"
            assert set(entries[row + 1 :]) <= {NO_BLOCK}, f"{seq.seq_id}: a state before its tokens"
            filled = [one for one, block in enumerate(entries) if block != NO_BLOCK]
            known = self._held[seq]
            assert filled == sorted({*known, row}), f"{seq.seq_id}: its snapshots are {known}"

    def _entry(self, row: int) -> int:
        return (row + 1) * self._width - 1

"""Places the states of recurrent layers in the block tables of one worker's sequences.

A sequence goes on in its state from row to row. Where a later request may begin, it goes on in
another state and leaves the earlier one behind, a snapshot, so that nothing is copied. A snapshot
is a matter of room: without it, the state moves along.
"""

from collections.abc import Sequence as Rows

from signalbox_contract.cache_groups import NO_BLOCK, CacheGroup
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from signalbox_scheduler.requests.sequence_group import Sequence

SNAPSHOT_TOKENS = 2048
"""Tokens of a prompt after each of which a snapshot is left in blocks that hold nothing: those of a
hybrid model take as much as some 1,500 of its tokens, so that they take no more than the tokens."""


class RunningStates:
    """The entries of the last group of tables, each of which names a state by its first block.

    Args:
        group: the group of recurrent layers; None has no states.
        num_groups: entries of a row of a table.
        leaves_snapshots: whether prefixes are looked for.
    """

    def __init__(
        self,
        group: CacheGroup | None,
        *,
        num_groups: int,
        block_size: int,
        gpu: BlockAllocator,
        leaves_snapshots: bool,
    ) -> None:
        self.num_blocks = group.state_blocks if group else 0
        """Blocks of a state; 0 if there are none."""
        self.new: dict[int, list[int]] = {}
        """Blocks of the states that were taken since the worker was last told, or came back from
        the CPU pool, by the first."""
        self._width = num_groups
        self._block_size = block_size
        self._gpu = gpu
        self._leaves_snapshots = leaves_snapshots
        self._branched_at: dict[Sequence, int] = {}  # row at which each has left a cached prefix

    def record_branch(self, seq: Sequence, num_rows: int) -> None:
        """Records that so many rows of a sequence that starts were found, but for a state."""
        self._branched_at[seq] = num_rows - 1

    def forget(self, seq: Sequence) -> None:
        """Forgets a sequence that has no blocks any more."""
        self._branched_at.pop(seq, None)

    def num_missing(self, seq: Sequence, num_planned: int) -> int:
        """Returns the blocks that a sequence needs to go on behind so many tokens, beside those
        with which `copy` replaces what it shares."""
        if num_planned % self._block_size or not self.num_blocks:
            return 0
        if num_planned and seq.is_on_worker:
            head = seq.block_table[self._entry(num_planned // self._block_size - 1)]
            if not self._gpu.is_shared(head):
                return 0
        return self.num_blocks

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
        snapshots = self._snapshots(seq, row if is_boundary else row + 1, last)
        head = table[self._entry(row)] if num_planned else NO_BLOCK
        # A table that is sent in full has the state that is read.
        must_stay = head == NO_BLOCK or gpu.is_shared(head) or not seq.is_on_worker
        stays = row in snapshots
        changed = []
        for after in [*snapshots, last]:
            if after <= row:
                continue
            has_room = gpu.num_free - num_reserved >= self.num_blocks
            if must_stay or (stays and has_room):
                head = gpu.allocate_state(self.num_blocks)
                self.name(head)
            else:
                gpu.forget_hash(head)
                table[self._entry(row)] = NO_BLOCK
            table[self._entry(after)] = head
            changed.append(self._entry(after))
            row, stays, must_stay = after, True, False
        return changed

    def _snapshots(self, seq: Sequence, first: int, last: int) -> list[int]:
        """Returns the rows in [first, last) behind which a state is to stay, ascending.

        They are the last boundary before the last known token, where the sequence left a cached
        prefix, and each `SNAPSHOT_TOKENS` while there is room.
        """
        if first >= last or not self._leaves_snapshots:
            return []
        newest = (seq.num_tokens - 1) // self._block_size - 1
        rows = {*range(max(first, newest), last)}
        if first <= (branch := self._branched_at.get(seq, -1)) < last:
            rows.add(branch)
        step = max(1, SNAPSHOT_TOKENS // self._block_size)
        regular = range(first + -(first + 1) % step, last, step)
        if self._gpu.num_empty > (len(regular) + 1) * self.num_blocks:
            rows.update(regular)
        return sorted(rows)

    def give_up(self, seq: Sequence, first: int) -> None:
        """Frees the states from a row on to the newest boundary of the accepted tokens.

        Those behind the prompt are evicted first, since later ones of the same sequence replace
        them.
        """
        newest = seq.num_computed_tokens // self._block_size - 1
        for row in range(max(first, 0), newest):
            entry = self._entry(row)
            if (head := seq.block_table[entry]) != NO_BLOCK:
                is_replaced = (row + 1) * self._block_size >= seq.group.num_prompt_tokens
                self._gpu.free(head, evict_first=is_replaced)
                seq.block_table[entry] = NO_BLOCK

    def copy(self, head: int) -> int:
        """Takes a state into which one that others share is to be copied."""
        copied = self._gpu.allocate_state(self._gpu.num_blocks_of([head]))
        self.name(copied)
        return copied

    def is_entry(self, index: int) -> bool:
        """Says whether an entry of a table is of a state."""
        return self.num_blocks > 0 and (index + 1) % self._width == 0

    def name(self, head: int) -> None:
        """Lets the worker hear which blocks a state has."""
        self.new[head] = self._gpu.blocks_of(head)

    def name_all(self, table: list[int]) -> None:
        """Lets the worker hear which blocks the states of a table have that is new to it."""
        if self.num_blocks:
            for head in table[self._width - 1 :: self._width]:
                if head != NO_BLOCK:
                    self.name(head)

    def take_new(self) -> Rows[Rows[int]]:
        """Returns the blocks of the states that the worker has to hear of, once."""
        new, self.new = self.new, {}
        return list(new.values())

    def check(self, seq: Sequence) -> None:
        """Asserts that a sequence has the state that its next token reads."""
        planned = seq.num_planned_tokens
        if planned and self.num_blocks:
            row = (planned - 1) // self._block_size
            entries = seq.block_table[self._width - 1 :: self._width]
            assert entries[row] != NO_BLOCK, f"{seq.seq_id}: its state is missing"
            assert set(entries[row + 1 :]) <= {NO_BLOCK}, f"{seq.seq_id}: a state before its tokens"

    def _entry(self, row: int) -> int:
        return (row + 1) * self._width - 1

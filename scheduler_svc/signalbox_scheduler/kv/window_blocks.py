"""The blocks of groups of layers that have a window, in the tables of one worker's sequences."""

from signalbox_contract.cache_groups import NO_BLOCK, num_token_groups
from signalbox_scheduler.config import CacheShape
from signalbox_scheduler.kv.block_allocator import BlockAllocator
from signalbox_scheduler.kv.block_table import held
from signalbox_scheduler.requests.sequence_group import Sequence


class WindowBlocks:
    """Takes blocks with the steps that compute their tokens, and frees them behind the window."""

    def __init__(self, shape: CacheShape, *, gpu: BlockAllocator) -> None:
        groups = shape.groups
        self.groups = [(column, one) for column, one in enumerate(groups) if one.window]
        """Groups that have a window, each behind the column of tables that is its own."""
        self._token_groups = groups[: num_token_groups(groups)]
        self._width = len(groups)
        self._block_size = shape.block_size
        self._gpu = gpu

    def missing(self, seq: Sequence, num_new_tokens: int) -> list[int]:
        """Returns the entries of the next tokens that are in the table and have no block yet."""
        size, width, table = self._block_size, self._width, seq.block_table
        planned = seq.num_planned_tokens
        end = min(-(-(planned + num_new_tokens) // size), len(table) // width)
        return [
            index
            for row in range(planned // size, end)
            for column, _ in self.groups
            if table[index := row * width + column] == NO_BLOCK
        ]

    def give_up(self, seq: Sequence) -> None:
        """Frees the blocks behind the windows of the last accepted token."""
        for column, group in self.groups:
            first = group.first_block(seq.num_computed_tokens, block_size=self._block_size)
            index = (first - 1) * self._width + column
            while index >= 0 and (block := seq.block_table[index]) != NO_BLOCK:
                self._gpu.free(block)
                seq.block_table[index] = NO_BLOCK
                index -= self._width

    def check(self, seq: Sequence) -> None:
        """Asserts that a sequence has all blocks that its next token sees, of full groups, too, and
        none behind a window."""
        size, num_computed = self._block_size, seq.num_computed_tokens
        num_rows = -(-seq.num_planned_tokens // size)
        whole = num_computed // size * size  # the decode batch frees blocks when one is complete
        for column, group in enumerate(self._token_groups):
            first = group.first_block(num_computed, block_size=size)
            entries = seq.block_table[column :: self._width]
            behind = held(entries[: group.first_block(whole, block_size=size)])
            # Nothing is given up of what a failed step has computed.
            assert not behind or seq.group.suspicion, f"{seq.seq_id}: behind the window"
            assert NO_BLOCK not in entries[first:num_rows], f"{seq.seq_id}: a block is missing"

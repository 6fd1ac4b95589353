"""Bounds of the tokens and blocks of a group, from the sizes of a worker's GPU pool."""

import bisect
from dataclasses import dataclass

from signalbox_contract.cache_groups import CacheGroup, keep_all, num_token_groups
from signalbox_scheduler.requests.sequence_group import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """Arithmetic with the sizes of one worker's GPU pool."""

    block_size: int
    """Tokens in a block."""
    num_gpu_blocks: int
    max_model_len: int
    """Longest sequence in tokens."""
    groups: tuple[CacheGroup, ...]
    """Groups of layers; a row of a block table has a block of each."""

    def num_rows(self, num_tokens: int) -> int:
        """Returns the rows of a table for so many tokens."""
        return -(-num_tokens // self.block_size)

    def num_in_rows(self, num_rows: int) -> int:
        """Returns the blocks by which a sequence grows in so many rows, with another state."""
        num_state_blocks = sum(group.state_blocks for group in self.groups)
        return num_rows * num_token_groups(self.groups) + num_state_blocks

    def num_prefix_tokens(self, group: SequenceGroup) -> int:
        """Returns the tokens of the prompt in whole blocks, which branches share for good."""
        return group.num_prompt_tokens // self.block_size * self.block_size

    def longest(self, group: SequenceGroup) -> int:
        """Returns the length in tokens at which a sequence of the group has its last.

        The vector of one that pools counts as a token, even behind the model's window.
        """
        if group.pools:
            return group.num_prompt_tokens + 1
        return min(group.num_prompt_tokens + group.max_tokens, self.max_model_len)

    def most_blocks(self, group: SequenceGroup) -> int:
        """Returns the blocks of the group at its longest, all branches, sharing what they must."""
        # The last token sampled is never computed.
        return self._most_blocks(self.num_rows(self.longest(group) - 1), group)

    def _most_blocks(self, num_rows: int, group: SequenceGroup | None = None) -> int:
        """Returns the blocks of a group whose sequences have so many rows; None has one sequence.

        Branches share the blocks of the prompt, unless they may have to compute it again because
        those behind a window, or its state, are gone.
        """
        num_branches, shared = 1, 0
        if group is not None:
            num_branches = group.num_branches
            if self.keeps_all:
                shared = min(num_rows, self.num_prefix_tokens(group) // self.block_size)
        own = self.most_of_sequence(num_rows) - shared * len(self.groups)
        return shared * len(self.groups) + num_branches * own

    def most_of_sequence(self, num_rows: int) -> int:
        """Returns the blocks that a sequence of so many rows has while it computes a token at a
        time."""
        size = self.block_size
        return sum(group.most_blocks(num_rows, block_size=size) for group in self.groups)

    @property
    def num_longest(self) -> float:
        """Sequences of the greatest length for which there are blocks."""
        return self.num_gpu_blocks / self.most_of_sequence(self.num_rows(self.max_model_len))

    def _most_rows(self, group: SequenceGroup | None = None) -> int:
        """Returns the rows that each sequence of a group may have for its blocks to fit."""
        most = self.num_rows(self.max_model_len)
        return bisect.bisect_right(
            range(1, most + 1),
            self.num_gpu_blocks,
            key=lambda count: self._most_blocks(count, group),
        )

    @property
    def keeps_all(self) -> bool:
        """True if the blocks of all tokens are kept."""
        return keep_all(self.groups)

    @property
    def longest_alone(self) -> int:
        """Tokens of the longest sequence that the GPU pool holds; the last is never computed."""
        return min(self._most_rows() * self.block_size + 1, self.max_model_len)

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens with which the group fits the GPU pool; else below 1."""
        longest = min(self._most_rows(group) * self.block_size + 1, self.max_model_len)
        return longest - group.num_prompt_tokens

    def can_ever_hold(self, group: SequenceGroup) -> bool:
        return self.most_blocks(group) <= self.num_gpu_blocks

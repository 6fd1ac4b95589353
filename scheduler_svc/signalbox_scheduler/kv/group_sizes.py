"""Bounds of the tokens and blocks of a group, from the sizes of a worker's GPU pool."""

from dataclasses import dataclass

from signalbox_scheduler.requests.sequence_group import SequenceGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupSizes:
    """Arithmetic with the sizes of one worker's GPU pool."""

    block_size: int
    """Tokens in a block."""
    num_gpu_blocks: int
    max_model_len: int
    """Longest sequence in tokens."""

    def num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

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
        num_blocks = self.num_blocks(self.longest(group) - 1)
        shared = self.num_prefix_tokens(group) // self.block_size
        return shared + group.num_branches * (num_blocks - shared)

    @property
    def longest_alone(self) -> int:
        """Tokens of the longest sequence that the GPU pool holds; the last is never computed."""
        return min(self.num_gpu_blocks * self.block_size + 1, self.max_model_len)

    def most_new_tokens(self, group: SequenceGroup) -> int:
        """Returns the greatest max_tokens with which the group fits the GPU pool; else below 1."""
        shared = self.num_prefix_tokens(group) // self.block_size
        num_blocks = shared + (self.num_gpu_blocks - shared) // group.num_branches
        longest = min(num_blocks * self.block_size + 1, self.max_model_len)
        return longest - group.num_prompt_tokens

    def can_ever_hold(self, group: SequenceGroup) -> bool:
        return self.most_blocks(group) <= self.num_gpu_blocks

"""A running group that goes from one worker to another with its KV.

The taker has room for it from the beginning. Whole blocks are copied while the group computes at
its owner; then it is paused for what came since and for the blocks that are filled in part. It is
among the running groups of its owner, and of no other worker, until it is among the taker's.
"""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv_moves.moves_under_way import Move
from signalbox_scheduler.requests.sequence_group import SequenceGroup

if TYPE_CHECKING:
    from signalbox_scheduler.kv_moves.worker_handovers import WorkerHandovers


@dataclass(slots=True, eq=False, kw_only=True)
class Handover:
    """One group on its way."""

    group: SequenceGroup
    owner: "WorkerHandovers"
    taker: "WorkerHandovers"
    num_slots: int
    """Sequences that the taker keeps room for."""
    num_wanted: int
    """GPU blocks that the taker's next plan takes for the group."""
    is_urgent: bool = True
    """False if it is to make steps shorter: the owner's steps copy little before the pause."""
    spare: Hold
    """GPU blocks of the taker that hold nothing yet."""
    filled: Hold
    """GPU blocks of the taker that have KV of the group, or will when its next step begins."""
    arrived: dict[BlockHash, int] = field(default_factory=dict)
    """Blocks of `filled` by the name of what they hold."""
    landed: dict[BlockHash, Hold] = field(default_factory=dict)
    """Blocks of the taker's CPU pool, each by its name, that its next plan copies to the GPU."""
    private: set[BlockHash] = field(default_factory=set)
    """Names by which no cache finds what they stand for."""
    fetch: Move | None = None
    until: float = 0.0
    """Time at which the fetch is given up, in seconds of the scheduler's clock."""
    has_paused: bool = False
    """True once the owner was asked to pause the group."""
    paused_at: float = 0.0
    num_missing: int | None = None
    """Blocks that were missing when the last round began."""
    num_rounds_in_vain: int = 0
    """Consecutive rounds without progress."""
    is_over: bool = False
    num_blocks: int = 0
    num_bytes: int = 0

    @property
    def is_valid(self) -> bool:
        """False if the group has ended, or was preempted, or is with its owner no more."""
        return self.owner.queues.runs(self.group) and self.has_paused is self.group.is_paused

    @property
    def may_pause(self) -> bool:
        """True if each sequence of the group only decodes."""
        group = self.group
        if group.times.first_token is None:
            return False
        return group.has_decode_rows or all(
            seq.num_remaining_tokens <= 1 for seq in group.unfinished
        )

    def names(self) -> dict[int, BlockHash]:
        """Returns the name of what each block of the group at its owner holds, in order.

        Until the group is paused, of those alone whose tokens are all accepted.
        """
        named: dict[int, BlockHash] = {}
        blocks = self.owner.blocks
        for seq in self.group.unfinished:
            num_whole = num_named = seq.num_cached_blocks
            if self.has_paused:
                num_named = max(num_whole, -(-seq.num_computed_tokens // blocks.block_size))
            for index, block in enumerate(seq.block_table[:num_named]):
                if block in named:
                    continue
                if index < num_whole and not blocks.gpu.is_private(block):
                    named[block] = seq.block_hashes[blocks.block_size][index]
                else:
                    named[block] = blocks.private_hash(seq, index)
                    self.private.add(named[block])
        return named

    @property
    def num_reserved(self) -> int:
        """GPU blocks of the taker that are kept for the group."""
        return len(self.filled.blocks) + len(self.spare.blocks)

    def next_spare(self) -> Hold:
        """Returns a GPU block of the taker: one that is kept for the group, else a new one."""
        if not self.spare.blocks:
            self.spare.take(1)
        return self.spare.split(len(self.spare.blocks) - 1)

    def release(self) -> None:
        """Gives up the blocks that the taker keeps for the group."""
        for landed in reversed(self.landed.values()):
            landed.release()
        self.spare.release()
        self.filled.release()
        self.landed, self.arrived = {}, {}

"""A running group that goes from one worker to another with its KV.

The taker has room for it from the beginning. Whole blocks are copied while the group computes at
its owner; then it is paused for what came since and for the blocks that are filled in part. It is
among the running groups of its owner, and of no other worker, until it is among the taker's. A
handover that is given up, in whichever of its states, leaves the group to its owner.
"""

from dataclasses import dataclass, field

from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.kv_moves.moves_under_way import Move
from signalbox_scheduler.kv_moves.peers import TransferPeer
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import SequenceGroup

RETRY_S = 0.25
"""Time after which it is tried again to hand a group over."""


class HandoverEnd:
    """One worker, as an owner and as a taker of groups on their way."""

    def __init__(self, state: SchedulerState, peer: TransferPeer) -> None:
        self.queues = state.queues
        self.blocks = state.blocks
        self.peer = peer
        self.coming: dict[SequenceGroup, Handover] = {}
        self.leaving: dict[SequenceGroup, Handover] = {}
        self.num_handed_over = 0
        self.num_given_up = 0
        """Handovers from this worker that came to nothing."""
        self._state = state
        self._retry_at: dict[SequenceGroup, float] = {}
        self.rebalance_at = 0.0
        """Time of the next look at whether another worker has less to do."""

    def may_leave(self, group: SequenceGroup) -> bool:
        """Says whether a group of this worker is in a state in which it can be handed over."""
        if not self.queues.runs(group) or group in self.leaving:
            return False
        if group.suspicion is not None or group.pools:
            return False
        return all(seq.block_table for seq in group.unfinished)

    def may_try(self, group: SequenceGroup) -> bool:
        """Says whether to hand a group over: one that could not be is left alone for a while."""
        return group not in self._retry_at and self.may_leave(group)

    def retry_later(self, group: SequenceGroup, now: float) -> None:
        """Leaves a group here for a while that could not be handed over."""
        self._retry_at[group] = now + RETRY_S

    def retry_now(self) -> None:
        """Tries again to hand over what waits: there is room for another group on its way."""
        self._retry_at.clear()
        self.rebalance_at = 0.0
        """Time of the next look at whether another worker has less to do."""

    def pause(self, group: SequenceGroup) -> None:
        """Lets no step take a group of this worker any more until its handover has ended."""
        self._state.decode_columns.release(group)
        self.queues.pause(group)

    def release(self, group: SequenceGroup) -> None:
        """Gives up what this worker has of a group that runs at another from now on."""
        for seq in group.unfinished:
            self._state.worker_state.forget(seq)
            self.blocks.free(seq)
        self.queues.remove(group)


@dataclass(slots=True, eq=False, kw_only=True)
class Handover:
    """One group on its way."""

    group: SequenceGroup
    owner: HandoverEnd
    taker: HandoverEnd
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

    def begin(self) -> None:
        """Makes the group known at both ends, and has the taker plan."""
        self.taker.queues.num_held_slots += self.num_slots
        self.taker.coming[self.group] = self.owner.leaving[self.group] = self
        self.taker.peer.endpoint.wake()

    def pause(self, now: float) -> None:
        """Has the owner compute no more of the group until the handover has ended."""
        self.owner.pause(self.group)
        self.has_paused = True
        self.paused_at = now

    def give_up(self, now: float) -> None:
        """Ends a handover that comes to nothing; the group goes on where it is."""
        if self.fetch is not None:
            self.taker.peer.reads.cancel(self.fetch, now)
        self.end()
        self.owner.num_given_up += 1
        self.owner.retry_later(self.group, now)
        if self.has_paused:
            self.owner.queues.go_on(self.group)
            self.owner.peer.endpoint.wake()

    def end(self) -> None:
        """Makes both ends forget the group, and gives up what the taker still keeps for it."""
        self.is_over = True
        del self.taker.coming[self.group]
        del self.owner.leaving[self.group]
        self.taker.queues.num_held_slots -= self.num_slots
        self.release()

    def release(self) -> None:
        """Gives up the blocks that the taker keeps for the group."""
        for landed in reversed(self.landed.values()):
            landed.release()
        self.spare.release()
        self.filled.release()
        self.landed, self.arrived = {}, {}

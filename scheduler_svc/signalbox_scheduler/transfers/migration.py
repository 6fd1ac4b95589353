"""A running group that goes from one worker to another with its KV.

The destination has room for it from the beginning. Whole blocks are copied while the group computes
at its source; then it is paused for what came since and for the blocks that are filled in part. It
is among the running groups of its source, and of no other worker, until it is among the
destination's. A migration that is aborted, in whichever of its states, leaves the group to its
source."""

from dataclasses import dataclass, field

from signalbox_contract.cache_groups import NO_BLOCK
from signalbox_scheduler.kv.block_allocator import BlockHash
from signalbox_scheduler.kv.hold import Hold
from signalbox_scheduler.planning.scheduler_state import SchedulerState
from signalbox_scheduler.requests.sequence_group import Sequence, SequenceGroup
from signalbox_scheduler.transfers.peers import TransferPeer
from signalbox_scheduler.transfers.pending_transfers import Transfer

RETRY_S = 0.25
"""Time after which it is tried again to migrate a group."""


class MigrationEnd:
    """One worker, as a migration sees it, whose source or destination it is.

    `WorkerMigrations`, which knows migrations, adds the plans of the worker.
    """

    def __init__(self, state: SchedulerState, peer: TransferPeer) -> None:
        self.queues = state.queues
        self.blocks = state.blocks
        self.peer = peer
        self.incoming: dict[SequenceGroup, Migration] = {}
        self.outgoing: dict[SequenceGroup, Migration] = {}
        self.num_out = 0
        self.num_aborted = 0
        """Migrations from this worker that came to nothing."""
        self._state = state
        self._retry_at: dict[SequenceGroup, float] = {}
        self.rebalance_at = 0.0
        """Time of the next look at whether another worker has less to do."""

    def may_leave(self, group: SequenceGroup) -> bool:
        """Says whether a group of this worker is in a state in which it can be migrated."""
        if not self.queues.runs(group) or group in self.outgoing:
            return False
        if group.suspicion is not None or group.pools:
            return False
        return all(seq.block_table for seq in group.unfinished)

    def may_try(self, group: SequenceGroup) -> bool:
        """Says whether to migrate a group: one that could not be is left alone for a while."""
        return group not in self._retry_at and self.may_leave(group)

    def retry_later(self, group: SequenceGroup, now: float) -> None:
        """Leaves a group here for a while that could not be migrated."""
        self._retry_at[group] = now + RETRY_S

    def retry_now(self) -> None:
        """Tries again to migrate what waits: there is room for another group on its way."""
        self._retry_at.clear()
        self.rebalance_at = 0.0

    def pause(self, group: SequenceGroup) -> None:
        """Lets no step take a group of this worker any more until its migration has ended."""
        self._state.decode_batch.release(group)
        self.queues.pause(group)

    def release(self, group: SequenceGroup) -> None:
        """Gives up what this worker has of a group that runs at another from now on."""
        for seq in group.unfinished:
            self._state.worker_state.forget(seq)
            self._state.drafts.forget(seq)
            self.blocks.free(seq)
        self.queues.remove(group)


@dataclass(slots=True, eq=False, kw_only=True)
class Migration:
    """One group on its way."""

    group: SequenceGroup
    source: MigrationEnd
    destination: MigrationEnd
    num_slots: int
    """Sequences that the destination keeps room for."""
    num_wanted: int
    """GPU blocks that the destination's next plan takes for the group."""
    is_urgent: bool = True
    """False if it is to make steps shorter: the source's steps copy little before the pause."""
    spare: Hold
    """GPU blocks of the destination that hold nothing yet."""
    filled: Hold
    """GPU blocks of the destination that have KV of the group, or will when its next step
    begins."""
    arrived: dict[BlockHash, int] = field(default_factory=dict)
    """Blocks of `filled` by the name of what they hold."""
    landed: dict[BlockHash, Hold] = field(default_factory=dict)
    """Blocks of the destination's CPU pool, each by its name, that its next plan copies to the
    GPU."""
    private: set[BlockHash] = field(default_factory=set)
    """Names by which no cache finds what they stand for."""
    fetch: Transfer | None = None
    until: float = 0.0
    """Time at which the fetch is aborted, in seconds of the scheduler's clock."""
    has_paused: bool = False
    """True once the source was asked to pause the group."""
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
        """False if the group has ended, or was preempted, or is with its source no more."""
        return self.source.queues.runs(self.group) and self.has_paused is self.group.is_paused

    @property
    def may_pause(self) -> bool:
        """True if each sequence of the group only decodes."""
        group = self.group
        if group.times.first_token is None:
            return False
        return group.is_in_decode_batch or all(
            seq.num_remaining_tokens <= 1 for seq in group.unfinished
        )

    def names(self) -> dict[int, BlockHash]:
        """Returns the name of what each block of the group at its source holds, in order.

        Until the group is paused, of those alone whose tokens are all accepted, and of no states,
        which change with each step; then of the states that it goes on in.
        """
        named: dict[int, BlockHash] = {}
        blocks = self.source.blocks
        width = blocks.num_groups
        for seq in self.group.unfinished:
            num_whole = num_named = seq.num_cached_blocks
            if self.has_paused:
                num_named = max(num_whole, -(-seq.num_computed_tokens // blocks.block_size))
            public = blocks.prefix_hashes(seq, 0, num_whole * width)
            for index, block in enumerate(seq.block_table[: num_named * width]):
                if block == NO_BLOCK or block in named:
                    continue
                if blocks.states.is_entry(index) and not self._goes_on_in(seq, index // width):
                    continue
                if index < len(public) and not blocks.gpu.is_private(block):
                    named[block] = public[index]
                else:
                    named[block] = blocks.private_hash(seq, index)
                    self.private.add(named[block])
        return named

    def _goes_on_in(self, seq: Sequence, row: int) -> bool:
        """Says whether the state of a row is the one that the sequence's next token reads."""
        block_size = self.source.blocks.block_size
        return self.has_paused and row == (seq.num_computed_tokens - 1) // block_size

    def drop_outdated(self) -> None:
        """Gives up what the destination has of blocks that are behind a window by now."""
        needed = set(self.names().values())
        for name in self.arrived.keys() - needed:
            self.filled.drop(self.arrived.pop(name))
        for name in self.landed.keys() - needed:
            self.landed.pop(name).release()

    @property
    def num_reserved(self) -> int:
        """GPU blocks of the destination that are kept for the group."""
        return self.filled.pool.num_blocks_of([*self.filled.blocks, *self.spare.blocks])

    def next_spare(self, num_blocks: int = 1) -> Hold:
        """Returns a GPU block of the destination, or the blocks of a state: those that are kept for
        the group, else new ones."""
        if num_blocks > 1:
            self.spare.split(max(0, len(self.spare.blocks) - num_blocks)).release()
            state = Hold(self.spare.pool, kind=self.spare.kind)
            state.take_state(num_blocks)
            return state
        if not self.spare.blocks:
            self.spare.take(1)
        return self.spare.split(len(self.spare.blocks) - 1)

    def begin(self) -> None:
        """Makes the group known at both ends, and has the destination plan."""
        self.destination.queues.num_held_slots += self.num_slots
        self.destination.incoming[self.group] = self.source.outgoing[self.group] = self
        self.destination.peer.endpoint.wake()

    def pause(self, now: float) -> None:
        """Has the source compute no more of the group until the migration has ended."""
        self.source.pause(self.group)
        self.has_paused = True
        self.paused_at = now

    def abort(self, now: float) -> None:
        """Ends a migration that comes to nothing; the group goes on where it is."""
        if self.fetch is not None:
            self.destination.peer.reads.cancel(self.fetch, now)
        self.end()
        self.source.num_aborted += 1
        self.source.retry_later(self.group, now)
        if self.has_paused:
            self.source.queues.resume(self.group)
            self.source.peer.endpoint.wake()

    def end(self) -> None:
        """Makes both ends forget the group, and gives up what the destination still keeps for
        it."""
        self.is_over = True
        del self.destination.incoming[self.group]
        del self.source.outgoing[self.group]
        self.destination.queues.num_held_slots -= self.num_slots
        self.release()

    def release(self) -> None:
        """Gives up the blocks that the destination keeps for the group."""
        for landed in reversed(self.landed.values()):
            landed.release()
        self.spare.release()
        self.filled.release()
        self.landed, self.arrived = {}, {}
